"""Ctrl-C while a program waits for other ranks.

Python's own handler can raise KeyboardInterrupt only when XLA has come back, which may be never. If
nothing moves after Ctrl-C, the engine is closed: what is in flight fails, XLA comes back, and
Python raises. In a job of horovodrun, the launcher ends all ranks before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from horovod._rank import context
from horovod.jax import host_copy, native_ops

if TYPE_CHECKING:
    from horovod._native import Engine
    from horovod._rank.group import Group
    from horovod._settings.config import Config

PATIENCE_S = 1.0
"""Collectives may end by themselves for so long after Ctrl-C."""

_PERIOD_S = 0.05
_REASON = "interrupted by Ctrl-C while a collective of JAX waited for other ranks"


class _Interrupts:
    """Closes the engines of this process if Ctrl-C comes while nothing moves."""

    def __init__(self) -> None:
        self._engines: dict[Group, Engine] = {}
        self._is_watching = False

    def begun(self, config: Config, group: Group, number: int) -> None:
        self._engines[group] = group.engine
        if not self._is_watching and threading.current_thread() is threading.main_thread():
            self._watch()

    def ended(self, group: Group) -> None:
        self._engines.pop(group, None)

    def _watch(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        if previous != -1:  # somebody else's, such as a loop of asyncio
            signal.set_wakeup_fd(previous)
            os.close(read_end)
            os.close(write_end)
            return
        self._is_watching = True
        threading.Thread(target=self._run, args=(read_end,), daemon=True).start()

    def _run(self, read_end: int) -> None:
        while signals := os.read(read_end, 64):
            is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if signal.SIGINT in signals and is_default and _nothing_moves():
                for engine in list(self._engines.values()):
                    engine.close(_REASON)


def _nothing_moves() -> bool:
    """Whether collectives are in flight, and none of them ends for a while."""
    ended = _num_ended()
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        is_in_flight = native_ops.is_in_flight() or host_copy.is_in_flight()
        if not is_in_flight or _num_ended() != ended:
            return False
        time.sleep(_PERIOD_S)
    return True


def _num_ended() -> int:
    return native_ops.num_ended() + host_copy.num_ended()


context.listen(_Interrupts())
