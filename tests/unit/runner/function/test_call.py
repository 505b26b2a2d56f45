"""Errors of ranks on their way to the caller: each is shown once, and none is lost."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from horovod.errors import StartError
from horovod.runner.function import task
from horovod.runner.function.call import RemoteFunction
from horovod.runner.function.task import FUNCTION_KEY, error_key
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.outcome import Outcome

TEXTS = {
    0: "Traceback\nValueError: first\n",
    1: "Traceback\nKeyError: second\n",
    2: "Traceback\nhorovod.errors.PeerLostError: rank 0 (a) was lost\n",
    3: "Traceback\nValueError: first\n",
}


class Store:
    """What ranks have left in the store."""

    def set(self, key: str, value: bytes) -> None:
        assert key == FUNCTION_KEY

    def try_get(self, key: str) -> bytes | None:
        texts = {error_key(rank): text.encode() for rank, text in TEXTS.items()}
        return texts.get(key)


@pytest.mark.parametrize("tells_others", [False, True])
def test_errors_that_ranks_do_not_print_are_told_by_the_caller(tells_others: bool) -> None:
    call = RemoteFunction(b"", ["a"] * 4, tells_others=tells_others)
    with call.using(Store()):  # type: ignore[arg-type]
        pass
    failure = RankExit(0, "a", 1, 0.0)
    error = call._error(Outcome(1, "rank 0 failed", failure))
    others = "rank 1 also raised: KeyError: second\n" if tells_others else ""
    assert str(error) == f"rank 0 on a raised an exception:\n{TEXTS[0]}{others}"
    assert error.traceback == TEXTS[0]


def test_an_error_without_which_the_job_goes_on_is_told_once() -> None:
    call = RemoteFunction(b"", ["a"] * 4, tells_others=True)
    said: list[str] = []
    with call.using(Store()):  # type: ignore[arg-type]
        call.tell_errors(said.append)
        assert said[0] == "rank 0 raised an exception:\nTraceback\nValueError: first"
        assert [each.splitlines()[0] for each in said] == [
            f"rank {rank} raised an exception:" for rank in (0, 1, 2)
        ]
    call.tell_errors(said.append)
    assert len(said) == 3
    error = call._error(Outcome(1, "rank 3 failed", RankExit(3, "a", 1, 0.0)))
    assert "also raised" not in str(error)


class Config:
    rank, start_timeout_s = 1, 1.0


@pytest.mark.parametrize(
    ("arguments", "is_stored", "is_printed"),
    [(["--quiet"], True, False), (["--quiet"], False, True), ([], True, True)],
)
def test_a_rank_is_quiet_only_about_what_the_caller_knows(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    is_stored: bool,
    is_printed: bool,
) -> None:
    told: list[Any] = []

    def exchange(config: Any, ask: Any) -> Any:
        if told and not is_stored:
            raise StartError("the launcher is gone")
        told.append(ask)
        return b"payload"

    def call(payload: bytes) -> None:
        raise ValueError("it was me")

    monkeypatch.setattr(sys, "argv", ["task", *arguments])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(task.Config, "from_env", Config)
    monkeypatch.setattr(task, "_exchange", exchange)
    monkeypatch.setattr(task, "_call", call)
    with pytest.raises(ValueError, match="it was me") as caught:
        task.main()
    sys.excepthook(caught.type, caught.value, caught.tb)
    assert ("ValueError: it was me" in capsys.readouterr().err) == is_printed
