"""Tells the launcher every few seconds how long this rank has waited for the others.

The rank that waits least while the others wait is the one that they wait for: see
:mod:`horovod.runner.supervision.slow_workers`, which reads it. While somebody watches the job, the
rank reports all of :class:`horovod._rendezvous.observed.Observed`, and looks at its main thread.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._rendezvous.waits import (
    COMMAND_KEY,
    OBSERVE_KEY,
    POSSIBLE_KEY,
    WANTED_KEY,
    Waits,
    waits_key,
)
from horovod.errors import StartError

if TYPE_CHECKING:
    from horovod._native import Engine
    from horovod._rank.reports.network_watch import NetworkWatch
    from horovod._rank.reports.steps import Steps
    from horovod._settings.config import Config

INTERVAL_S = 4.0
# A rank asks with every second report what viewers want, or with each if two take longer than that.
_ASK_S = 3.0
# How often a rank asks again that has nothing to tell; the store answers at once if it has.
_IDLE_S = 60.0
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.2, 60.0


class WaitReport:
    """A thread that reports as long as the engine runs. Ends by itself if nobody reads it.

    Args:
        engine: of this rank.
        config: says where the store is.
        steps: counts them.
        link_bytes_per_s: measured speed of the network between the hosts; 0 if unknown.
    """

    def __init__(
        self, engine: Engine, config: Config, steps: Steps, link_bytes_per_s: float = 0.0
    ) -> None:
        self._engine = engine
        self._config = config
        self._steps = steps
        self._link_bytes_per_s = link_bytes_per_s
        self._network: NetworkWatch | None = None
        self._ended = threading.Event()
        self._store: StoreClient | None = None
        self._told_at = 0.0
        self._thread = threading.Thread(target=self._run, name="hvd-waits", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Ends the reports; idempotent."""
        self._ended.set()
        if self._store is not None:
            self._store.interrupt()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        # A job that is shorter than that connects to no store for it.
        if self._ended.wait(INTERVAL_S):
            return
        config = self._config
        where = config.rendezvous_addr, config.rendezvous_port
        # A launcher that is gone ends the rank in other ways.
        with (
            suppress(StartError),
            StoreClient(*where, secret_of(config), config.start_timeout_s) as store,
        ):
            self._store = store
            wanted = store.wait_all([WANTED_KEY, POSSIBLE_KEY], 0.0)
            tells_waits = WANTED_KEY in wanted and config.slow_worker != "off"
            while (tells_waits or POSSIBLE_KEY in wanted) and not self._ended.is_set():
                if tells_waits:
                    self._tell_waits(store)
                found = store.wait_all([OBSERVE_KEY], INTERVAL_S if tells_waits else _IDLE_S)
                if OBSERVE_KEY in found:
                    self._report(store, found[OBSERVE_KEY], tells_waits=tells_waits)
        if self._network is not None:
            self._network.end()

    def _report(self, store: StoreClient, interval: bytes, *, tells_waits: bool) -> None:
        """Tell all that viewers see, as long as there are any."""
        # Most jobs are never watched, and are to start soon.
        from horovod._rank.reports.observation import Observation

        with Observation(self._engine, self._config, self._steps) as observation:
            asked_at = 0.0
            while not self._ended.is_set():
                observation.sample_for(_interval_s(interval), self._ended)
                observation.tell(store, self._link_bytes_per_s)
                now = time.monotonic()
                if tells_waits and now - self._told_at >= INTERVAL_S:
                    self._tell_waits(store)
                if now - asked_at < min(_ASK_S, 2 * _interval_s(interval) - 0.1):
                    continue
                asked_at = now
                found = store.wait_all([OBSERVE_KEY, COMMAND_KEY], 0.0)
                observation.answers.follow(found.get(COMMAND_KEY), store)
                if OBSERVE_KEY not in found:
                    return
                interval = found[OBSERVE_KEY]

    def _tell_waits(self, store: StoreClient) -> None:
        numbers = self._engine.statistics()
        told = Waits(time.monotonic(), numbers["waited_ns"] / 1e9, numbers["submitted"])
        store.set(waits_key(self._config.generation, self._config.rank), told.to_json())
        self._told_at = told.at_s
        if self._config.rank == 0 and self._config.cross_size > 1 and self._link_bytes_per_s:
            self._look_at_network(told)

    def _waits(self) -> Waits:
        numbers = self._engine.statistics()
        return Waits(time.monotonic(), numbers["waited_ns"] / 1e9, numbers["submitted"])

    def _look_at_network(self, told: Waits) -> None:
        # Not for jobs on one host, which are to start soon.
        from horovod._rank.reports.network_watch import Counters, NetworkWatch
        from horovod._rank.reports.usage import read_network_bytes

        if self._network is None:
            self._network = NetworkWatch(self._config.cross_size, self._link_bytes_per_s)
        if not self._network.is_over:
            now = told.at_s, self._steps.number, told.waited_s
            self._network.look(Counters(*now, *read_network_bytes()))


def _interval_s(text: bytes) -> float:
    try:
        return min(_MOST_INTERVAL_S, max(_LEAST_INTERVAL_S, float(text)))
    except ValueError:
        raise StartError(f"malformed interval of reports: {text[:80]!r}") from None
