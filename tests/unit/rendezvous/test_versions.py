"""Processes of other versions are refused by name; what they read before that keeps its form."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

import pytest

import horovod
from horovod._job.bootstrap import TWIN_KEY, _Notice
from horovod._job.job import open_job
from horovod._job.worker import join
from horovod._rendezvous import StoreClient, StoreServer
from horovod._rendezvous.handshake import (
    ClientHandshake,
    Hello,
    ReplayStore,
    ServerHandshake,
    pack_hello,
)
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.versions import VERSION_KEY, check_version, refuse_other_version
from horovod.errors import StartError
from horovod.runner.protocol.frames import Kind, encode
from horovod.runner.protocol.invitation import Invitation

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._job.environment import StoreAddress

OTHER = "1.99.0"
SECRET = bytes(range(32))


def test_a_store_tells_who_opened_it(server: StoreServer, secret: bytes) -> None:
    with StoreClient(server.address, server.port, secret) as client:
        assert client.try_get(VERSION_KEY) == horovod.__version__.encode()
        check_version(client)


def test_a_process_of_another_version_tells_the_others(
    server: StoreServer, secret: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = horovod.__version__
    monkeypatch.setattr(horovod, "__version__", OTHER)
    with StoreClient(server.address, server.port, secret) as client:
        text = rf"^rank 1 has Horovod {OTHER}, but the process .* has Horovod {re.escape(ours)}; "
        with pytest.raises(StartError, match=text) as refusal:
            check_version(client, "rank 1", TWIN_KEY)
        assert client.try_get(TWIN_KEY) == str(refusal.value).encode()


def test_a_worker_of_another_version_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is with the workers of elastic jobs, of Ray and of Spark."""
    with open_job() as job:
        where: StoreAddress = job.where
        monkeypatch.setattr(horovod, "__version__", OTHER)
        with pytest.raises(StartError, match=rf"a worker on a .* has Horovod {OTHER}, but "):
            join(where, "a")
        assert job.next_event(0.05) is None


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version": 1}', b"[" * 100_000, b"\xff"])
def test_what_is_no_record_of_any_version_is_not_refused_as_one(text: bytes) -> None:
    refuse_other_version(text, "another rank", "1")


# -- what other versions of 1.x rely on, byte by byte


def test_a_hello_keeps_its_form() -> None:
    hello = Hello("worker", 3, 4, Incarnation(5, 6), 7)
    message = pack_hello(SECRET, hello, b"n" * 32)
    assert message[:36].hex() == (
        "686f726f766f6401" "776f726b65720000" "00000007" "00000003" "00000004" "00000005" "00000006"
    )  # fmt: skip
    assert message[36:68] == b"n" * 32
    assert hashlib.sha256(message).hexdigest()[:16] == "6d2292fbe3a794e3"


def test_a_handshake_keeps_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    draw: Callable[[int], bytes] = lambda count: b"n" * count  # noqa: E731
    monkeypatch.setattr("secrets.token_bytes", draw)
    client = ClientHandshake(SECRET, Hello("store"))
    server = ServerHandshake(SECRET, lambda hello: True, ReplayStore())
    spoken, says = [client.opening], client.opening
    for side in (server, client, server, client):
        side.buffer()[: len(says)] = says
        says = side.filled(len(says))
        spoken.append(says)
    assert client.session is not None
    assert server.session is not None
    assert client.session.send_key == server.session.receive_key
    assert [len(each) for each in spoken] == [100, 64, 32, 32, 0]
    assert hashlib.sha256(b"".join(spoken)).hexdigest()[:16] == "bbd27d6ff0c776bf"


def test_the_frame_with_the_version_of_an_agent_keeps_its_form() -> None:
    assert encode(Kind.READY, payload=b"1 1.0").hex() == "10ffffffff000000053120312e30"


def test_invitations_and_notices_keep_their_form() -> None:
    """Files of jobs that hosts may join, and what rank 0 shares where no launcher of ours is."""
    text = Invitation((("10.0.0.1", 4711),), SECRET, ("eth0",)).to_json()
    assert json.loads(text) == {
        "endpoints": [["10.0.0.1", 4711]],
        "secret": SECRET.hex(),
        "network_interfaces": ["eth0"],
    }
    more = json.dumps(json.loads(text) | {"of_the_future": 1})
    assert Invitation.from_json(more.encode()).endpoints == (("10.0.0.1", 4711),)
    notice = _Notice((("10.0.0.1", 4711),), SECRET).to_text()
    shared = json.loads(bytes.fromhex(notice))
    assert shared == {"endpoints": [["10.0.0.1", 4711]], "secret": SECRET.hex()}
    assert _Notice.from_text(json.dumps(shared | {"of_the_future": 1}).encode().hex())
