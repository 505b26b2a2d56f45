"""Tells the launcher every few seconds how long this rank has waited for the others.

The rank that waits least while the others wait is the one that they wait for: see
:mod:`horovod.runner.supervision.slow_workers`, which reads it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._rendezvous.waits import WANTED_KEY, Waits, waits_key
from horovod.errors import StartError

if TYPE_CHECKING:
    from horovod._native import Engine
    from horovod._settings.config import Config

INTERVAL_S = 4.0


class WaitReport:
    """A thread that reports as long as the engine runs. Ends by itself if nobody reads it.

    Args:
        engine: of this rank.
        config: says where the store is.
    """

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._config = config
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvd-waits", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Ends the reports; idempotent."""
        self._ended.set()
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
            key = waits_key(config.generation, config.rank)
            wanted = store.try_get(WANTED_KEY) is not None
            while wanted:
                numbers = self._engine.statistics()
                told = Waits(time.monotonic(), numbers["waited_ns"] / 1e9, numbers["submitted"])
                store.set(key, told.to_json())
                if self._ended.wait(INTERVAL_S):
                    return
