"""The agent's way to the launcher's store."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from horovod._rendezvous import StoreServer, make_secret
from horovod.runner.agent.launcher_connection import LauncherConnection
from horovod.runner.protocol.invitation import Invitation

DEADLINE_S = 60.0


class Watch:
    """What a launcher connection reported."""

    def __init__(self, invitation: Invitation) -> None:
        self.loop = asyncio.new_event_loop()
        self.reached: list[int] = []
        self.ends = 0
        self.cuts = 0
        self.line = LauncherConnection(
            self.loop, invitation, self._on_reached, self._on_end, self._on_cut
        )

    def _on_reached(self, index: int, own_address: str) -> None:
        assert own_address.startswith("127.0.0.")
        self.reached.append(index)

    def _on_end(self) -> None:
        self.ends += 1
        self.loop.stop()

    def _on_cut(self) -> None:
        self.cuts += 1
        self.loop.stop()

    def run(self) -> None:
        """Until the next report, or the deadline."""
        timer = self.loop.call_later(DEADLINE_S, self.loop.stop)
        self.loop.run_forever()
        timer.cancel()

    def close(self) -> None:
        with suppress(RuntimeError):
            self.loop.close()


def test_all_endpoints_are_tried_and_only_the_store_of_this_job_counts() -> None:
    secret = make_secret()
    free = socket.create_server(("127.0.0.1", 0))
    closed = free.getsockname()
    free.close()
    with (
        StoreServer(make_secret()) as other,
        StoreServer(secret, "127.0.0.1", further_addresses=["127.0.0.2"]) as store,
    ):
        endpoints = (closed, (other.address, other.port), *store.endpoints, ("::1", 9))
        watch = Watch(Invitation(endpoints, secret))
        watch.run()
        assert sorted(watch.reached) == [2, 3]
        assert (watch.ends, watch.cuts) == (1, 0)
        store.narrow(store.endpoints[1])
        assert watch.line.keep(store.address, store.port).startswith("127.0.0.")
        store.set("key", b"still there")
    watch.run()
    assert watch.cuts == 1
    watch.close()


def test_an_endpoint_that_was_not_reached_has_no_way() -> None:
    secret = make_secret()
    with StoreServer(secret) as store:
        watch = Watch(Invitation(store.endpoints, secret))
        watch.run()
        assert watch.line.keep("192.0.2.1", 1) == ""
        watch.close()


def test_without_endpoints_the_search_ends() -> None:
    watch = Watch(Invitation((), make_secret()))
    watch.run()
    assert (watch.reached, watch.ends) == ([], 1)
    watch.close()
