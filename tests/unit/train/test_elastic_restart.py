"""Jobs that go on from the commits of an earlier one; ranks are threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod.common.elastic import ObjectState, State
from horovod.errors import StartError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


class Weights:
    """Has state."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Crash(Exception):
    """Of all ranks."""


def work(crashes_at: int | None, ends_at: int = 9) -> tuple[int, int, list[int]]:
    """Trains; returns where it began, the weights, and what it has noted of each step."""
    context.init()
    began: list[int] = []

    @run
    def train(state: ObjectState) -> None:
        began.append(state.step)
        while state.step < ends_at:
            state.step += 1
            state.weights.value += 10
            state.noted.append(state.step)
            if state.step == crashes_at:
                raise Crash
            if state.step % 2 == 0:
                state.commit()

    state = ObjectState(broadcast_object, context.rank, step=0, noted=[], weights=Weights())
    try:
        train(state)
    finally:
        context.shutdown()
    return began[0], state.weights.value, state.noted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOROVOD_CHECKPOINT_DIR", str(tmp_path))
    return tmp_path


def crash(ranks: int, step: int) -> None:
    with pytest.raises(Crash):
        run_ranks(ranks, work, step)


def test_a_job_of_another_size_goes_on_from_the_last_commit(folder: Path) -> None:
    crash(2, 5)
    results = run_ranks(3, work, None)
    assert results == [(4, 90, list(range(1, 10)))] * 3


def test_a_job_that_crashes_again_and_again_comes_to_its_end(folder: Path) -> None:
    crash(2, 3)
    crash(2, 5)
    crash(1, 7)
    assert run_ranks(2, work, None) == [(6, 90, list(range(1, 10)))] * 2
    # It is at its end now, with the last commit.
    assert run_ranks(1, work, None) == [(8, 90, list(range(1, 10)))]


def test_every_nth_commit_and_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECKPOINT_EVERY", "2")
    crash(2, 7)
    assert run_ranks(2, work, None)[1][0] == 4
    monkeypatch.delenv("HOROVOD_CHECKPOINT_DIR")
    assert run_ranks(2, work, None)[1][0] == 0


def test_a_state_that_was_loaded_or_trained_is_not_loaded_again(folder: Path) -> None:
    def twice() -> list[int]:
        context.init()
        state = ObjectState(broadcast_object, context.rank, step=0)

        @run
        def train(state: ObjectState) -> int:
            state.step += 1
            state.commit()
            state.step += 10
            return state.step

        results = [train(state), train(state)]
        context.shutdown()
        return results

    assert run_ranks(2, twice) == [[11, 22]] * 2
    assert run_ranks(2, twice) == [[12 + 11, 12 + 22]] * 2


def failing(make: Callable[[], State], match: str) -> None:
    def load() -> None:
        context.init()
        try:
            run(lambda state: None)(make())
        finally:
            context.shutdown()

    with pytest.raises(StartError, match=match):
        run_ranks(1, load)


def test_the_commit_of_another_program_is_refused(folder: Path) -> None:
    crash(2, 5)
    failing(
        lambda: ObjectState(broadcast_object, context.rank, other=Weights()),
        "commit-000000002 holds state.weights, but the state has state.other",
    )


class Strict(Weights):
    def load_state_dict(self, state: dict[str, int]) -> None:
        raise ValueError("size mismatch")


def test_a_commit_that_does_not_fit_is_refused(folder: Path) -> None:
    crash(2, 5)
    failing(
        lambda: ObjectState(broadcast_object, context.rank, weights=Strict()),
        "does not fit state.weights: ValueError: size mismatch",
    )


def test_new_values_begin_anew_and_old_ones_are_forgotten(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crash(2, 5)

    def load() -> tuple[int, int]:
        context.init()
        state = ObjectState(broadcast_object, context.rank, step=0, best=7, weights=Weights())
        run(lambda state: None)(state)
        context.shutdown()
        return state.step, state.best

    assert run_ranks(2, load) == [(4, 7)] * 2
    assert "commit-000000002 is without state.best: they begin anew" in caplog.text


class OwnState(State):
    """Keeps something in its own way."""

    def save(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def sync(self) -> None:
        pass


def test_a_state_of_another_kind_is_named_and_trains_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> None:
        context.init()
        run(lambda state: state.commit())(OwnState(broadcast_object, context.rank))
        context.shutdown()

    run_ranks(2, load)
    assert not list(folder.iterdir())
    assert "the state is a OwnState, which is no ObjectState" in caplog.text
