"""Time that passes when a test says so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from horovod.testing import ManualClock


def test_time_passes_only_when_it_is_told_to() -> None:
    clock = ManualClock(10.0)
    assert (clock(), clock()) == (10.0, 10.0)
    clock.advance(2.5)
    assert clock() == 12.5
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(-1.0)


def test_a_sleep_ends_when_its_time_has_come() -> None:
    clock = ManualClock()

    def sleep(seconds: float) -> float:
        clock.sleep(seconds)
        return clock()

    with ThreadPoolExecutor(2) as threads:
        short, long = threads.submit(sleep, 1.0), threads.submit(sleep, 5.0)
        clock.wait_for_sleepers(2)
        clock.advance(2.0)
        assert short.result(30) == 2.0
        assert not long.done()
        clock.advance(3.0)
        assert long.result(30) == 5.0


def test_a_sleep_that_nobody_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod.testing.manual_clock._REAL_TIMEOUT_S", 0.01)
    clock = ManualClock()
    with pytest.raises(TimeoutError, match=r"nobody advanced the clock to 3 s within 0\.01 s"):
        clock.sleep(3.0)
    with pytest.raises(TimeoutError, match="nobody made 1 threads sleep"):
        clock.wait_for_sleepers()
