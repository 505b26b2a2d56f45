from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from horovod.runner.system.signals import caught_signals, wakeups


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 30)[0])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_caught_signal_is_a_byte(signum: signal.Signals) -> None:
    before = signal.getsignal(signum)
    with caught_signals() as descriptor:
        os.kill(os.getpid(), signum)
        assert readable(descriptor)
        assert os.read(descriptor, 10) == bytes([signum])
    assert signal.getsignal(signum) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with caught_signals() as descriptor:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert not select.select([descriptor], [], [], 0)[0]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_of_the_program_still_run_and_the_loop_wakes() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: handled.append(signum))
    try:
        with wakeups() as descriptor:
            assert descriptor is not None
            os.kill(os.getpid(), signal.SIGTERM)
            assert readable(descriptor)
        assert handled == [signal.SIGTERM]
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_thread_needs_no_wakeups() -> None:
    seen: list[int | None] = []

    def look() -> None:
        with wakeups() as descriptor:
            seen.append(descriptor)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(30)
    assert seen == [None]
