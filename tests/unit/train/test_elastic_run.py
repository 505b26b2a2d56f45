"""The loop around a training function, with ranks that are threads."""

from __future__ import annotations

import inspect
import signal
from typing import Any

import pytest

from horovod._rank import context
from horovod._rank.reports.end import report_of
from horovod._train import objects
from horovod._train.elastic.changes import Round, agree_on_round
from horovod._train.elastic.run import run
from horovod.common.elastic import ObjectState, run_fn
from horovod.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    PeerLostError,
    ShutDownError,
    StalledError,
    StartError,
)
from horovod.testing import run_ranks

RECOVERABLE = [HorovodInternalError, PeerLostError, ShutDownError]
PROGRAMS = [MismatchError, StalledError, ValueError, KeyboardInterrupt, SystemExit]


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


class Recorder(ObjectState):
    """Notes what the loop calls."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(broadcast_object, context.rank, **attributes)
        self.calls: list[str] = []

    def sync(self) -> None:
        self.calls.append("sync")
        super().sync()

    def restore(self) -> None:
        self.calls.append("restore")
        super().restore()

    def on_reset(self) -> None:
        self.calls.append(f"reset of {context.size()}")
        super().on_reset()


def test_the_wrapper_looks_like_the_function() -> None:
    def train(state: ObjectState, factor: float = 2.0, *, name: str) -> str:
        """Trains."""
        return f"{name} {factor}"

    wrapped = run(train)
    assert (wrapped.__name__, wrapped.__doc__) == ("train", "Trains.")
    assert inspect.signature(wrapped) == inspect.signature(train)


def test_arguments_and_result_go_through(alone: None) -> None:
    @run
    def train(state: Recorder, *args: int, **kwargs: int) -> Any:
        return args, kwargs

    for _ in range(2):  # also with another state
        assert train(Recorder(epoch=1), 1, two=2) == ((1,), {"two": 2})


@pytest.mark.parametrize("kind", RECOVERABLE)
def test_after_a_loss_all_go_on_from_the_commit(kind: type[Exception]) -> None:
    def train() -> tuple[list[str], list[int]]:
        context.init()
        seen: list[int] = []

        @run
        def steps(state: Recorder) -> None:
            seen.append(state.step)
            while state.step < 4:
                state.step += 1
                state.save()
                state.step += 10
                if state.step == 12 and len(seen) == 1:
                    raise kind("a rank was lost")
                state.step -= 10

        state = Recorder(step=0)
        steps(state)
        return state.calls, seen

    expected = ["sync", "restore", "reset of 2", "sync"], [0, 2]
    assert run_ranks(2, train) == [expected] * 2


@pytest.mark.parametrize("skip", [True, False])
def test_an_interrupt_keeps_what_was_trained(alone: None, skip: bool) -> None:
    state = Recorder(step=0)

    @run
    def train(state: Recorder) -> int:
        if state.step == 0:
            state.step = 3  # not saved
            raise HostsUpdatedInterrupt(skip)
        return state.step

    assert train(state) == 3
    assert state.calls == ["sync", "reset of 1"] + ([] if skip else ["sync"])


def test_one_rank_that_needs_the_state_gets_it_from_all() -> None:
    def train() -> tuple[list[str], int]:
        context.init()
        state = Recorder(step=context.rank())

        @run
        def steps(state: Recorder) -> None:
            if "reset of 3" in state.calls:
                return
            state.step = 10 + context.rank()
            raise HostsUpdatedInterrupt(skip_sync=context.rank() != 1)

        steps(state)
        return state.calls, state.step

    assert run_ranks(3, train) == [(["sync", "reset of 3", "sync"], 10)] * 3


@pytest.mark.parametrize("kind", PROGRAMS)
def test_errors_of_the_program_go_out(alone: None, kind: type[BaseException]) -> None:
    state = Recorder(step=0)

    @run
    def train(state: Recorder) -> None:
        raise kind("wrong")

    with pytest.raises(kind):
        train(state)
    assert state.calls == ["sync"]


def test_a_mismatch_of_the_program_ends_all_ranks_without_a_reset() -> None:
    def train() -> list[str]:
        context.init()
        state = Recorder(step=0)

        @run
        def steps(state: Recorder) -> None:
            from horovod._native import Buffer

            values = bytearray(1 + context.rank())
            view = Buffer.from_array(values)
            context.global_group().allreduce((view,), (view,), name="shapes", keep=values).wait()

        with pytest.raises(MismatchError, match="shapes"):
            steps(state)
        return state.calls

    assert run_ranks(2, train) == [["sync"]] * 2


@pytest.mark.parametrize("where", ["sync", "on_reset", "restore"])
def test_a_loss_at_any_place_is_one_more_change(alone: None, where: str) -> None:
    failures = ["once more"]

    class Unlucky(Recorder):
        def fail(self, place: str) -> None:
            if place == where and failures:
                failures.pop()
                raise PeerLostError("a rank was lost")

        def sync(self) -> None:
            super().sync()
            if context.generation() == 0 and "restore" in self.calls:
                self.fail("sync")

        def restore(self) -> None:
            super().restore()
            self.fail("restore")

        def on_reset(self) -> None:
            super().on_reset()
            self.fail("on_reset")

    state = Unlucky(step=0)

    @run
    def train(state: Unlucky) -> int:
        if "restore" not in state.calls:
            state.step = 5
            raise PeerLostError("a rank was lost")
        return state.step

    assert train(state) == 0
    assert not failures
    assert state.calls.count("restore") == 2
    assert state.calls[-1] == "sync"


class Wrong(Exception):
    """Of the program."""


class WrongIn(Recorder):
    """Has an error in what is called at a change."""

    def __init__(self, place: str) -> None:
        super().__init__(step=0)
        self.place = place
        self.register_reset_callbacks([lambda: self.fail("a reset callback")])

    def fail(self, place: str) -> None:
        if place == self.place and "restore" in self.calls:
            raise Wrong(place)

    def sync(self) -> None:
        super().sync()
        self.fail("sync")

    def restore(self) -> None:
        super().restore()
        self.fail("restore")

    def on_reset(self) -> None:
        super().on_reset()
        self.fail("on_reset")


@pytest.mark.parametrize("place", ["sync", "restore", "on_reset", "a reset callback"])
@pytest.mark.parametrize("kind", [PeerLostError, HorovodInternalError])
def test_an_error_of_the_program_in_a_change_is_not_one_of_the_loss(
    alone: None, place: str, kind: type[Exception]
) -> None:
    state = WrongIn(place)

    @run
    def train(state: WrongIn) -> None:
        raise kind("a rank was lost")

    with pytest.raises(Wrong) as caught:
        train(state)
    assert report_of(caught.value).lines == (f"Wrong: {place}",)


def test_a_start_that_fails_names_the_loss(alone: None) -> None:
    def reset() -> None:
        raise StartError("rank 1 did not come")

    def train(state: Recorder) -> None:
        raise PeerLostError("rank 1 was lost")

    with pytest.raises(StartError, match="did not come") as caught:
        run_fn(train, reset)(Recorder(step=0))
    assert isinstance(caught.value.__cause__, PeerLostError)


def test_sigterm_outside_of_an_elastic_job_is_what_it_always_was(alone: None) -> None:
    before = signal.getsignal(signal.SIGTERM)

    @run
    def train(state: Recorder) -> object:
        return signal.getsignal(signal.SIGTERM)

    assert train(Recorder(step=0)) == before


@pytest.mark.parametrize(
    ("states", "needs", "expected"),
    [
        ([False, False, True], [True, False, False], Round(True, 2)),
        ([False, True, True], [True, False, False], Round(True, 1)),
        ([False, False, False], [True, True, True], Round(True, 0, is_first=True)),
        ([True, True, True], [False, False, False], Round(False, 0)),
    ],
)
def test_the_state_comes_from_the_first_rank_that_has_it(
    states: list[bool], needs: list[bool], expected: Round
) -> None:
    def agree() -> Round:
        context.init()
        rank = context.rank()
        return agree_on_round(needs_sync=needs[rank], has_state=states[rank])

    assert run_ranks(3, agree) == [expected] * 3
