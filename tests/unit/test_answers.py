"""Traces that viewers of a job ask for, beside the timelines of its program."""

from __future__ import annotations

import json
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from horovod._rank import context
from horovod._rank.reports import answers
from horovod._rank.reports.answers import Answers
from horovod._rank.reports.steps import Steps
from horovod._rendezvous.observed import Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from horovod._rendezvous.store import StoreClient


class Viewer:
    """Asks the only rank of a job for traces, and keeps what it answers."""

    def __init__(self) -> None:
        job = context.current().job()
        self._steps = Steps()
        self._answers = Answers(job.running.engine, job.config, self._steps)
        self._number = 0
        self.answer = b""

    def set(self, key: str, value: bytes) -> None:
        self.answer = value

    def ask(self) -> None:
        self._number += 1
        self._follow(Command(self._number, "trace", 1).to_json())

    def after_a_step(self) -> bytes:
        context.global_group().barrier(name="a step").wait()
        self._steps.count()
        self._follow(None)
        return self.answer

    def _follow(self, text: bytes | None) -> None:
        self._answers.follow(text, cast("StoreClient", self))


@contextmanager
def viewer() -> Iterator[Viewer]:
    context.init()
    try:
        yield Viewer()
    finally:
        context.shutdown()


def names_in(text: bytes) -> set[str]:
    records: list[dict[str, Any]] = json.loads(text)
    return {str(record.get("args", {}).get("name", record.get("name"))) for record in records}


def test_a_trace_has_the_next_steps() -> None:
    with viewer() as asking:
        asking.ask()
        answer = asking.after_a_step()
    assert answer[:1] == b"="
    assert "barrier.a step" in names_in(zlib.decompress(answer[1:]))


def test_a_timeline_of_the_program_ends_a_trace_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    with viewer() as asking:
        asking.ask()
        context.stop_timeline()  # of the program, which has none
        context.start_timeline(str(path))
        assert b"!the program has started a timeline of its own" in asking.after_a_step()
        context.global_group().barrier(name="later").wait()
        asking.ask()
        assert b"!there is a timeline already, in " in asking.answer
        context.stop_timeline()
    assert {"barrier.a step", "barrier.later"} <= names_in(path.read_bytes())


def test_a_trace_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_TRACE_BYTES", 10)
    with viewer() as asking:
        asking.ask()
        assert b"!the trace has" in asking.after_a_step()
