"""States of elastic training: what is kept, what is sent, and what a check says."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest

from horovod._rank import context
from horovod._train import objects
from horovod.common.elastic import HostUpdateResult, ObjectState, State
from horovod.errors import HostsUpdatedInterrupt, PeerLostError, UsageError
from horovod.testing import run_ranks


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


def state_of(**attributes: Any) -> ObjectState:
    return ObjectState(broadcast_object, context.rank, **attributes)


class Schedule:
    """Has state, as a learning rate scheduler."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.lock = threading.Lock()  # nobody can copy it

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def test_restore_goes_back_to_the_last_save() -> None:
    state = state_of(epoch=1, losses=[1.0], options={"lr": [0.1]}, schedule=Schedule(3))
    schedule = state.schedule
    state.epoch, state.schedule.step = 2, 4
    state.losses.append(2.0)
    state.options["lr"][0] = 0.2
    state.restore()  # the constructor has saved
    assert (state.epoch, state.losses, state.options) == (1, [1.0], {"lr": [0.1]})
    assert state.schedule is schedule
    assert schedule.step == 3
    state.losses.append(3.0)
    state.save()
    state.losses.append(4.0)
    for _ in range(2):  # what was restored can be changed and restored again
        state.restore()
        assert state.losses == [1.0, 3.0]
        state.losses.clear()


class Dataset:
    """May be large, and does not change."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("kept", [threading.Lock(), Dataset()], ids=["a lock", "a data set"])
def test_what_cannot_or_should_not_be_copied_is_kept_as_it_is(kept: Any) -> None:
    state = state_of(kept=kept)
    state.kept = None
    state.restore()
    assert state.kept is kept


def test_arrays_and_collections_of_the_library_are_copied() -> None:
    array, counts = np.zeros(2), Counter("aab")
    state = state_of(array=array, counts=counts, recent=deque([1], maxlen=2))
    array[0] = 1.0
    counts["a"] = 9
    state.recent.append(2)
    state.restore()
    assert (state.array.tolist(), state.counts, state.recent) == (
        [0.0, 0.0], Counter("aab"), deque([1])
    )  # fmt: skip


def test_an_attribute_that_was_deleted_is_missed() -> None:
    state = state_of(epoch=1)
    del state.epoch
    with pytest.raises(AttributeError, match="epoch"):
        state.save()


@pytest.mark.parametrize("name", ["commit", "sync_root", "_saved"])
def test_an_attribute_may_not_hide_one_of_the_state(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' would hide one of the state itself: rename"):
        state_of(**{name: 1})


def test_assigning_what_has_state_saves_it() -> None:
    state = state_of(schedule=Schedule(1))
    state.schedule = other = Schedule(5)
    other.step = 6
    state.restore()
    assert (state.schedule, other.step) == (other, 5)


def test_sync_sends_live_values_and_keeps_them() -> None:
    def train() -> tuple[Any, ...]:
        context.init()
        rank = context.rank()
        schedule = Schedule(10 * rank)
        state = state_of(epoch=rank, seen=[rank], schedule=schedule)
        state.epoch += 5  # not saved
        schedule.step += 7
        state.sync()
        synced = (state.epoch, state.seen, state.schedule is schedule, schedule.step)
        state.epoch, schedule.step = 99, 99
        state.restore()
        return synced, (state.epoch, schedule.step)

    assert run_ranks(3, train) == [((5, [0], True, 7), (5, 7))] * 3


def test_a_sync_that_fails_leaves_no_half_of_a_snapshot() -> None:
    class Unlucky(Schedule):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            if state["step"] == 7:
                raise PeerLostError("a rank was lost")
            super().load_state_dict(state)

    context.init()
    first, second = Schedule(5), Unlucky(5)
    state = state_of(first=first, second=second, step=5)
    first.step = second.step = state.step = 7  # not committed
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert (first.step, second.step, state.step) == (5, 5, 5)
    context.shutdown()


def test_sync_sends_from_who_has_the_state() -> None:
    def train() -> tuple[int, int]:
        context.init()
        state = state_of(epoch=context.rank(), schedule=Schedule(context.rank()))
        state._sync_root = 2
        state.sync()
        return state.epoch, state.schedule.step

    assert run_ranks(3, train) == [(2, 2)] * 3


def test_a_state_without_attributes_sends_nothing() -> None:
    def train() -> None:
        context.init()
        if context.rank() == 0:
            state_of().sync()  # alone

    run_ranks(2, train)


def test_reset_callbacks_run_in_order_after_reset() -> None:
    calls: list[str] = []

    class Mine(State):
        def reset(self) -> None:
            calls.append("reset")

    state = Mine(broadcast_object, context.rank)
    state.register_reset_callbacks([lambda: calls.append("a"), lambda: calls.append("b")])
    state.register_reset_callbacks([lambda: calls.append("c")])
    state.on_reset()
    assert calls == ["reset", "a", "b", "c"]
    for method in (state.save, state.restore, state.sync):
        with pytest.raises(NotImplementedError):
            method()


@pytest.mark.parametrize(
    ("told", "skips"),
    [
        ([HostUpdateResult.removed], True),
        ([HostUpdateResult.added], False),
        ([HostUpdateResult.removed, HostUpdateResult.added], False),  # in the same second
        ([HostUpdateResult.mixed], False),
    ],
)
def test_all_ranks_hear_what_one_was_told(told: list[HostUpdateResult], skips: bool) -> None:
    def train() -> tuple[bool, int]:
        context.init()
        state = state_of(epoch=0)
        state.commit()  # nothing has changed
        if context.rank() == 1:
            for each in told:
                state.on_hosts_updated(1, each)
        state.epoch = 4
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.commit()
        state.epoch = 5
        state.restore()
        state.check_host_updates()  # it was told once
        return caught.value.skip_sync, state.epoch

    assert run_ranks(3, train) == [(skips, 4)] * 3


def test_what_was_told_before_a_reset_is_forgotten() -> None:
    context.init()
    state = state_of(epoch=0)
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.on_reset()
    state.check_host_updates()
    context.shutdown()
