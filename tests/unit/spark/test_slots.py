"""How long a job waits for room in its application, by a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from horovod.errors import StartError
from horovod.spark.session import Session


class Application(Session):
    """Has as many slots as the seconds say."""

    def __init__(self, *slots: tuple[float, int], is_local: bool = False) -> None:
        self.context: Any = object()
        self.at_s = 1000.0
        self._slots = slots
        self._local = is_local

    @property
    def is_dynamic(self) -> bool:
        return False

    def num_slots(self) -> int:
        return [number for at_s, number in self._slots if self.at_s >= 1000 + at_s][-1]

    def _executors(self) -> str:
        return "1 executor"

    def _is_local(self) -> bool:
        return self._local

    def _clock(self) -> float:
        return self.at_s

    def _pause(self, seconds: float) -> None:
        assert seconds > 0
        self.at_s += seconds


def test_an_executor_that_comes_back_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    left_s = Application((0, 2), (1, 1), (100, 3)).await_slots(3, 300, "horovod.spark.run")
    assert left_s == pytest.approx(200, abs=1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert (
        "num_proc=3 tasks must run at the same time, but this application has room for 1"
        in (lines[0])
    )
    assert lines[0].endswith("(1 executor): waiting for it, up to 295 s more")
    assert lines[1].endswith("up to 235 s more")


def test_a_moment_is_not_worth_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert Application((0, 2)).await_slots(2, 300, "run") == 300
    assert Application((0, 0), (4, 2)).await_slots(2, 300, "run") == pytest.approx(296, abs=1)
    assert capsys.readouterr().err == ""


def test_it_gives_up_after_as_long_as_it_was_told() -> None:
    application = Application((0, 1))
    with pytest.raises(StartError, match=r"room for 1 \(1 executor\), after 300 s \(start_timeout"):
        application.await_slots(2, 300, "run")
    assert application.at_s == pytest.approx(1300, abs=1)


def test_a_local_application_never_gets_more_room() -> None:
    application = Application((0, 2), is_local=True)
    with pytest.raises(StartError, match=r"room for 2 \(1 executor\): ask for fewer"):
        application.await_slots(3, 300, "run")
    assert application.at_s == 1000
