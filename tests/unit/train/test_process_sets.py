"""Process sets: numbers, reuse, and what is refused before anything is sent."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from horovod import _native
from horovod._rank import context, job_context
from horovod._rank.group import Group
from horovod._rank.job_context import Context
from horovod._rank.reduction import Reduction
from horovod._settings.config import Config
from horovod._train import process_set_table
from horovod._train.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    group_of,
    remove_process_set,
)
from horovod.errors import MismatchError, NotInitializedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ADD, REMOVE, JOIN = _native.ADD_PROCESS_SET, _native.REMOVE_PROCESS_SET, _native.JOIN


class LoneEngine:
    """An engine whose peers always agree, or never."""

    size = 4

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.submitted: list[tuple[int, str, dict[str, Any]]] = []
        self.agrees = True
        self.closed = ""
        self._ids = itertools.count(1)

    def submit(
        self, kind: int, name: str | None, inputs: object, outputs: object, **options: Any
    ) -> LoneEngine:
        self.submitted.append((kind, f"{options['prefix']}.{name or 'noname'}", options))
        return self

    def close(self, reason: str) -> None:
        self.closed = reason

    def wait(self) -> None:
        if not self.agrees:
            raise MismatchError("the ranks named different process sets")

    def done(self) -> bool:
        return True

    def new_process_set(self) -> int:
        return next(self._ids)

    def last_joined(self) -> int:
        return 3


class _Running:
    """What ``start_engine`` returns."""

    def __init__(self, engine: LoneEngine, config: Config) -> None:
        self.engine = engine
        self.config = config

    def close(self, reason: str) -> None:
        self.engine.close(reason)

    def abandon(self) -> None:
        raise AssertionError("nobody forks here")


@pytest.fixture(name="starting")
def _starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoneEngine]:
    """The engine that hvd.init() will find."""
    engine = LoneEngine(1)
    # Adapters that other tests of this process have loaded look for a real engine.
    monkeypatch.setattr(job_context.process, "_listeners", [])
    config = Config(rank=1, size=4, rendezvous_addr="127.0.0.1", rendezvous_port=1)
    with Context(config, lambda config, incarnation: _Running(engine, config)).use():
        yield engine
        context.shutdown()


@pytest.fixture(name="engine")
def _engine(starting: LoneEngine) -> LoneEngine:
    """Rank 1 of 4 in a running job."""
    context.init()
    return starting


def test_a_set_knows_its_ranks_before_it_is_registered() -> None:
    process_set = ProcessSet((3, 1, 0))
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[0, 1, 3], mpi_comm=None)"
    assert (process_set.rank(), process_set.size(), process_set.mpi_comm) == (None, None, None)
    assert str(global_process_set) == "ProcessSet(process_set_id=0, ranks=None, mpi_comm=None)"
    assert global_process_set.included() is None
    with pytest.raises(NotInitializedError):
        process_set.included()
    with pytest.raises(NotInitializedError):
        add_process_set([0])


@pytest.mark.parametrize("ranks", ["abc", [0.5], [None], 3, [[0]]])
def test_ranks_are_integers(ranks: Any) -> None:
    with pytest.raises(UsageError, match="integer ranks"):
        ProcessSet(ranks)


def test_communicators_of_mpi_are_refused() -> None:
    class Comm:
        Get_rank = Get_size = staticmethod(lambda: 0)

    comm: Any = Comm()
    with pytest.raises(NotImplementedError, match="give the global ranks"):
        ProcessSet(comm)


def test_a_registered_set_has_a_number_and_a_group(engine: LoneEngine) -> None:
    process_set = add_process_set([3, 1])
    assert str(process_set) == "ProcessSet(process_set_id=1, ranks=[1, 3], mpi_comm=None)"
    assert (process_set.included(), process_set.rank(), process_set.size()) == (True, 0, 2)
    kind, name, options = engine.submitted[0]
    assert (kind, name) == (ADD, "process_set.change")
    assert (list(options["ranks"]), options["process_set"]) == ([1, 3], 0)
    assert options["call_site"].startswith(__file__)
    group = group_of(process_set)
    assert (group.process_set_id, group.ranks, group.is_member) == (1, (1, 3), True)


def test_a_rank_outside_of_a_set_is_told_so(engine: LoneEngine) -> None:
    process_set = add_process_set([0, 2])
    assert (process_set.included(), process_set.size()) == (False, 2)
    group = process_set.group()
    assert not group.is_member
    calls: list[Callable[[], object]] = [
        process_set.rank,
        group.barrier,
        group.join,
        lambda: group.allreduce([], []),
        lambda: group.rows_of(8),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"rank 1 .* ranks \[0, 2\]; only its members"):
            call()
    assert len(engine.submitted) == 1


def test_freed_numbers_are_used_again_in_the_order_of_their_removal(engine: LoneEngine) -> None:
    sets = [add_process_set([rank]) for rank in range(4)]
    assert [each.process_set_id for each in sets] == [1, 2, 3, 4]
    assert remove_process_set(sets[2])
    assert remove_process_set(sets[0])
    assert sets[0].process_set_id is None
    assert add_process_set([0, 1]).process_set_id == 3
    assert add_process_set(sets[0]).process_set_id == 1
    assert add_process_set([2, 3]).process_set_id == 5
    kinds = [kind for kind, _, _ in engine.submitted]
    assert kinds == [ADD] * 4 + [REMOVE] * 2 + [ADD] * 3
    # The engine's own numbers are never used again.
    assert sets[0].group().process_set_id == 6
    assert [options["ranks"] for kind, _, options in engine.submitted if kind == REMOVE] == [
        [3],
        [1],
    ]


def test_what_is_not_registered_is_not_removed(engine: LoneEngine) -> None:
    process_set = ProcessSet([0, 1])
    assert not remove_process_set(process_set)
    assert not remove_process_set(global_process_set)
    assert global_process_set.process_set_id == 0
    add_process_set(process_set)
    # Another object of the same ranks is not this set.
    assert not remove_process_set(ProcessSet([0, 1]))
    assert remove_process_set(process_set)
    assert not remove_process_set(process_set)
    with pytest.raises(UsageError, match="not registered"):
        group_of(process_set)
    not_a_set: Any = [0, 1]
    for function in (remove_process_set, group_of):
        with pytest.raises(UsageError, match="is not a"):
            function(not_a_set)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2, 0], "those of process set 1"),
        ([], "at least one rank"),
        ([1, 1], "holds a rank twice"),
        ([-1, 0], "does not fit"),
        ([0, 4], r"0 … 3"),
    ],
)
def test_sets_that_make_no_sense(engine: LoneEngine, ranks: list[int], words: str) -> None:
    first = add_process_set([0, 2])
    with pytest.raises(UsageError, match=words):
        add_process_set(ranks)
    with pytest.raises(UsageError, match="those of process set 1"):
        add_process_set(first)
    with pytest.raises(UsageError, match="always registered"):
        add_process_set(global_process_set)
    assert len(engine.submitted) == 1


def test_a_set_of_all_ranks_is_one_of_its_own(engine: LoneEngine) -> None:
    every = add_process_set([3, 1, 0, 2])
    assert (every.process_set_id, every.ranks) == (1, [0, 1, 2, 3])
    assert every.group() is not context.global_group()
    with pytest.raises(UsageError, match="those of process set 1"):
        add_process_set(range(4))
    assert remove_process_set(every)
    assert not remove_process_set(every)
    assert global_process_set.group() is context.global_group()


def test_sets_that_the_ranks_do_not_agree_on(engine: LoneEngine) -> None:
    kept = add_process_set([0, 2])
    engine.agrees = False
    refused = ProcessSet([1])
    with pytest.raises(MismatchError):
        add_process_set(refused)
    assert refused.process_set_id is None
    with pytest.raises(MismatchError):
        remove_process_set(kept)
    assert kept.process_set_id == 1
    engine.agrees = True
    assert add_process_set(refused).process_set_id == 2


def test_the_end_of_a_job_unregisters_its_sets(engine: LoneEngine) -> None:
    process_set = add_process_set([0, 2])
    context.shutdown()
    assert (process_set.process_set_id, process_set.rank()) == (None, None)
    context.init()
    assert process_set.process_set_id is None
    assert not remove_process_set(process_set)
    assert add_process_set(process_set).process_set_id == 1


def test_a_second_init_finds_the_sets_of_the_first(engine: LoneEngine) -> None:
    first = add_process_set([0, 2])
    again, unknown = ProcessSet([2, 0]), ProcessSet([0])
    again.resolve()
    assert again.process_set_id == first.process_set_id
    assert again.group() is first.group()
    with pytest.raises(KeyError, match=r"\[0\]"):
        unknown.resolve()
    assert remove_process_set(again)
    assert first.process_set_id is None


def test_tables_go_with_their_jobs() -> None:
    before = len(process_set_table._tables)
    world = Group(LoneEngine(0), 0, range(4))  # type: ignore[arg-type]
    table = process_set_table.table_of(world)
    assert process_set_table.table_of(world) is table
    del world
    assert len(process_set_table._tables) == before


def test_what_join_and_weights_send(engine: LoneEngine) -> None:
    world = context.global_group()
    assert world.join(divide_by_initial_world_size=False).last_joined() == 3
    kind, name, options = engine.submitted[-1]
    assert (kind, name, options["divide_by_initial_world_size"]) == (JOIN, "join.noname", False)
    world.allreduce([], [])
    assert engine.submitted[-1][2].get("weight") is None
    world.allreduce([], [], Reduction(weight=0.0))
    assert engine.submitted[-1][2]["weight"] == 0.0


def test_init_registers_what_it_is_given(starting: LoneEngine) -> None:
    even, odd = ProcessSet([2, 0]), ProcessSet([1, 3])
    context.init(process_sets=[even, odd])
    assert (even.process_set_id, odd.process_set_id) == (1, 2)
    assert (even.included(), odd.rank()) == (False, 0)
    again = ProcessSet([3, 1])
    context.init(process_sets=[again])
    assert again.process_set_id == 2
    with pytest.raises(KeyError, match=r"\[0\]"):
        context.init(process_sets=[ProcessSet([0])])
    assert len(starting.submitted) == 2
    context.shutdown()
    assert (even.process_set_id, odd.size()) == (None, None)
    context.init(process_sets=(even,))
    assert even.process_set_id == 1


@pytest.mark.parametrize("ranks", [[0, 1], [1, 0, 3, 2]])
def test_init_refuses_equal_sets_and_then_takes_a_better_list(
    starting: LoneEngine, ranks: list[int]
) -> None:
    first, second = ProcessSet([1, 0]), ProcessSet(ranks)
    with pytest.raises(ValueError, match=rf"number 1, .*{sorted(ranks)}.* is the same as"):
        context.init(process_sets=[first, second])
    context.init(process_sets=[first, ProcessSet([0])])
    assert first.process_set_id == 1


def test_init_fails_if_the_ranks_name_different_sets(starting: LoneEngine) -> None:
    starting.agrees = False
    with pytest.raises(MismatchError):
        context.init(process_sets=[ProcessSet([0])])
    assert not context.is_initialized()
    assert "process sets" in starting.closed
