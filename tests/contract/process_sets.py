"""What every adapter's process sets must do; see :mod:`collectives` for what a check is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from collectives import data, expect, expect_error, known

from horovod._rank.reduction import ReduceOp
from horovod.errors import HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from collectives import Api

DTYPES = ("float32", "bfloat16", "int64", "uint8")


@contextmanager
def registered(api: Api, *sets: Sequence[int]) -> Iterator[list[Any]]:
    """Process sets of these ranks, for the time of a check."""
    added = [api.call("add_process_set", ranks) for ranks in sets]
    yield added
    for process_set in added:
        assert api.call("remove_process_set", process_set)


@contextmanager
def even_and_odd(api: Api, rank: int, size: int) -> Iterator[tuple[Any, Any, list[int]]]:
    """The set of this rank, the other one, and the ranks of the first."""
    ranks = [list(range(parity, size, 2)) for parity in range(2)]
    with registered(api, *ranks) as sets:
        yield sets[rank % 2], sets[1 - rank % 2], ranks[rank % 2]


def _every_call(
    api: Api, process_set: Any, root: int, num_rows: int
) -> tuple[Callable[[], Any], ...]:
    """One call of each operation, in the set."""
    tensor = api.tensor(np.ones((num_rows, 2)), "float32")
    where = {"process_set": process_set}
    return (
        lambda: api.call("allreduce", tensor, **where),
        lambda: api.call("grouped_allreduce", [tensor, tensor], **where),
        lambda: api.call("allgather", tensor, **where),
        lambda: api.call("grouped_allgather", [tensor], **where),
        lambda: api.call("broadcast", tensor, root, **where),
        lambda: api.call("alltoall", tensor, **where),
        lambda: api.call("reducescatter", tensor, **where),
        lambda: api.call("grouped_reducescatter", [tensor], **where),
        lambda: api.call("barrier", **where),
        lambda: api.call("join", **where),
    )


def reductions_take_the_values_of_the_members(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, _, ranks):
        for dtype in known(api, DTYPES):
            every = [data(r, (len(ranks), 3), dtype, 1, 4) for r in ranks]
            tensor = api.tensor(every[ranks.index(rank)], dtype)
            summed = np.sum(every, axis=0)
            for op, expected in (
                (ReduceOp.SUM, summed),
                (ReduceOp.MIN, np.min(every, axis=0)),
                (ReduceOp.MAX, np.max(every, axis=0)),
                (ReduceOp.PRODUCT, np.prod(every, axis=0)),
            ):
                got = api.call("allreduce", tensor, op=op, process_set=mine)
                expect(api, got, expected, dtype)
            got = api.call("grouped_allreduce", [tensor, tensor], op=ReduceOp.SUM, process_set=mine)
            for each in got:
                expect(api, each, summed, dtype)
            own = summed[ranks.index(rank)][None]
            got = api.call("reducescatter", tensor, op=ReduceOp.SUM, process_set=mine)
            expect(api, got, own, dtype)
            got = api.call("grouped_reducescatter", [tensor], op=ReduceOp.SUM, process_set=mine)
            expect(api, got[0], own, dtype)


def averages_divide_by_the_size_of_the_set(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, _, ranks):
        values = np.full(7, 4.0 * (1 + ranks.index(rank)))
        expected = np.full(7, 2.0 * (1 + len(ranks)))
        for dtype in ("float64", "int32"):
            got = api.call("allreduce", api.tensor(values, dtype), process_set=mine)
            expect(api, got, expected, dtype)
        got = api.call("reducescatter", api.tensor(values, "float64"), process_set=mine)
        expect(api, got, expected[: api.values(got).size], "float64")


def exchanges_keep_the_order_of_the_members(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, _, ranks):
        for dtype in known(api, DTYPES):
            every = [data(r, (r % 3, 2), dtype) for r in ranks]
            tensor = api.tensor(every[ranks.index(rank)], dtype)
            got = api.call("allgather", tensor, process_set=mine)
            expect(api, got, np.concatenate(every), dtype)
            got = api.call("grouped_allgather", [tensor, tensor], process_set=mine)
            expect(api, got[1], np.concatenate(every), dtype)
            for root in ranks:
                tensor = api.tensor(data(rank, (3, 5), dtype), dtype)
                got = api.call("broadcast", tensor, root, process_set=mine)
                expect(api, got, data(root, (3, 5), dtype), dtype)
            # Each member sends as many rows to a member as this one's rank says.
            splits = [each % 3 for each in ranks]
            sent = api.tensor(np.full((sum(splits), 2), rank), dtype)
            got, received = api.call("alltoall", sent, splits, process_set=mine)
            expect(api, got, np.repeat([ranks, ranks], rank % 3, axis=1).T, dtype)
            assert list(api.values(received)) == [rank % 3] * len(ranks)
            got = api.call(
                "alltoall", api.tensor(np.full(len(ranks), rank), dtype), process_set=mine
            )
            expect(api, got, np.array(ranks), dtype)


def a_set_knows_its_ranks(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, other, ranks):
        assert (mine.ranks, mine.size(), mine.rank()) == (ranks, len(ranks), ranks.index(rank))
        assert (mine.included(), other.included()) == (True, False)
        expect_error(UsageError, other.rank)
        number = mine.process_set_id
        assert str(mine) == f"ProcessSet(process_set_id={number}, ranks={ranks}, mpi_comm=None)"
        numbers = np.array([mine.process_set_id, other.process_set_id])
        everyones = api.values(api.call("allgather", api.tensor(np.sort(numbers)[None], "int64")))
        assert (everyones == everyones[0]).all()


def only_members_may_call(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, other, ranks):
        for call in _every_call(api, other, other.ranks[0], len(other.ranks)):
            message = str(expect_error(ValueError, call))
            assert f"rank {rank}" in message
        one = api.tensor([1], "int32")
        # An interface may say so as late as at the end of the operation.
        expect_error(ValueError, lambda: api.finish(api.start("allreduce", one, **_in(other))))
        # The members of both sets are not disturbed.
        total = api.call("allreduce", api.tensor([rank], "int32"), op=ReduceOp.SUM, **_in(mine))
        expect(api, total, np.array([sum(ranks)]), "int32")


def _in(process_set: Any) -> dict[str, Any]:
    return {"process_set": process_set}


def a_root_outside_of_the_set_is_refused(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, other, ranks):
        tensor = api.tensor(np.ones(3), "float32")
        for root in (*other.ranks, -1, size):
            expect_error(
                ValueError, lambda root=root: api.call("broadcast", tensor, root, process_set=mine)
            )
        expect(api, api.call("broadcast", tensor, ranks[-1], **_in(mine)), np.ones(3), "float32")


def sets_that_do_not_exist_are_refused(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, other, ranks):
        even, odd = (mine, other) if rank % 2 == 0 else (other, mine)
        assert api.call("remove_process_set", odd)
        assert odd.process_set_id is None
        assert not api.call("remove_process_set", odd)
        for call in _every_call(api, odd, 0, 2):
            expect_error(ValueError, call)
        # It can be added again, also with its ranks in another order.
        expect_error(ValueError, lambda: api.call("add_process_set", list(reversed(even.ranks))))
        assert api.call("add_process_set", odd) is odd
        got = api.call("allreduce", api.tensor([1], "int32"), op=ReduceOp.SUM, **_in(mine))
        expect(api, got, np.array([len(ranks)]), "int32")


def sets_that_make_no_sense_are_refused(api: Api, rank: int, size: int) -> None:
    for ranks in ([], [0, 0], [size], [-1]):
        expect_error(ValueError, lambda ranks=ranks: api.call("add_process_set", ranks))
    if size == 1:
        return
    # Each rank names another set: nobody gets one, and the next one is made.
    expect_error(HorovodInternalError, lambda: api.call("add_process_set", [rank]))
    with registered(api, [size - 1]) as (last,):
        assert last.process_set_id is not None


def a_set_of_all_ranks_is_one_of_its_own(api: Api, rank: int, size: int) -> None:
    with registered(api, range(size)) as (every,):
        assert (every.size(), every.rank(), every.included()) == (size, rank, True)
        assert every.process_set_id != 0
        tensor = api.tensor([rank], "int32")
        handle = api.start("allreduce", tensor, name="x", op=ReduceOp.SUM, **_in(every))
        world = api.call("allreduce", tensor, name="x", op=ReduceOp.SUM)
        expected = np.array([size * (size - 1) // 2])
        expect(api, world, expected, "int32")
        expect(api, api.finish(handle), expected, "int32")
        expect_error(ValueError, lambda: api.call("add_process_set", range(size)))


def a_name_can_be_in_use_in_several_sets(api: Api, rank: int, size: int) -> None:
    if size < 3:
        return
    with registered(api, range(size - 1), range(1, size)) as sets:
        mine = [process_set for process_set in sets if process_set.included()]
        tensor = api.tensor([rank], "int32")
        for order in (1, -1):
            handles = {
                process_set: api.start(
                    "allreduce", tensor, name="x", op=ReduceOp.SUM, **_in(process_set)
                )
                # Each rank begins with another set.
                for process_set in mine[:: order if rank % 2 else -order]
            }
            world = api.call("allreduce", tensor, name="x", op=ReduceOp.SUM)
            expect(api, world, np.array([size * (size - 1) // 2]), "int32")
            for process_set, handle in handles.items():
                expect(api, api.finish(handle), np.array([sum(process_set.ranks)]), "int32")


def disjoint_sets_do_not_wait_for_each_other(api: Api, rank: int, size: int) -> None:
    if size < 3:
        return
    with even_and_odd(api, rank, size) as (mine, _, ranks):
        tensor = api.tensor(np.ones(5000), "float32")
        handle = None
        if rank % 2 == 1:
            for _ in range(10):
                api.call("allreduce", tensor, **_in(mine))
                api.call("barrier", **_in(mine))
        elif rank != 0:
            # Rank 0 comes to the operation of its set only after the others have done theirs.
            handle = api.start("allreduce", tensor, name="late", op=ReduceOp.SUM, **_in(mine))
        api.call("barrier")
        if rank % 2 == 0:
            if handle is None:
                handle = api.start("allreduce", tensor, name="late", op=ReduceOp.SUM, **_in(mine))
            expect(api, api.finish(handle), np.full(5000, len(ranks)), "float32")


def sets_come_and_go_while_operations_are_in_flight(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    for turn in range(5):
        tensor = api.tensor(np.full(3000, rank), "float32")
        handles = [api.start("allreduce", tensor, name=f"t{i}", op=ReduceOp.SUM) for i in range(3)]
        with registered(api, [turn % size]) as (alone,):
            handles.append(api.start("allgather", tensor))
            if alone.included():
                got = api.call("allreduce", tensor, op=ReduceOp.SUM, **_in(alone))
                expect(api, got, np.full(3000, rank), "float32")
                handles.append(api.start("allreduce", tensor, op=ReduceOp.SUM, **_in(alone)))
        for handle in handles[:3]:
            expect(api, api.finish(handle), np.full(3000, size * (size - 1) / 2), "float32")
        expect(api, api.finish(handles[3]), np.repeat(np.arange(size), 3000), "float32")
        for handle in handles[4:]:
            expect(api, api.finish(handle), np.full(3000, rank), "float32")


def freed_numbers_are_used_again(api: Api, rank: int, size: int) -> None:
    if size < 3:
        return
    first, second = (api.call("add_process_set", [r]) for r in range(2))
    number = first.process_set_id
    assert number not in (0, None, second.process_set_id)
    assert api.call("remove_process_set", first)
    third = api.call("add_process_set", [0, 2])
    assert third.process_set_id == number
    for process_set in (second, third):
        assert api.call("remove_process_set", process_set)
    assert not api.call("remove_process_set", _global_set())


def _global_set() -> Any:
    from horovod._train.process_set import global_process_set

    return global_process_set


def a_disagreement_concerns_the_members_only(api: Api, rank: int, size: int) -> None:
    if size < 4:
        return
    with registered(api, [0, 1], [2, 3]) as sets:
        if rank > 3:
            return
        mine = sets[rank // 2]
        tensor = api.tensor(np.ones(3 + (1 if rank == 1 else 0)), "float32")
        if rank < 2:
            message = str(
                expect_error(
                    HorovodInternalError, lambda: api.call("allreduce", tensor, **_in(mine))
                )
            )
            assert "rank 0" in message
            assert "rank 2" not in message
        else:
            expect(api, api.call("allreduce", tensor, **_in(mine)), np.ones(3), "float32")


def gradients_flow_within_the_set(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, _, ranks):
        num_members = len(ranks)
        ones = np.ones(2 * num_members)
        for name, args, kwargs, expected in (
            ("allreduce", (), {"op": ReduceOp.SUM}, float(num_members)),
            ("allreduce", (), {}, 1.0),
            ("allgather", (), {}, 1.0),
            ("alltoall", (), {}, 1.0),
            ("broadcast", (ranks[-1],), {}, float(rank == ranks[-1])),
            ("reducescatter", (), {"op": ReduceOp.SUM}, float(num_members)),
            ("reducescatter", (), {}, 1.0),
        ):
            got = api.gradient(
                lambda x, name=name, args=args, kwargs=kwargs: api.call(
                    name, x, *args, **kwargs, **_in(mine)
                ),
                ones,
                np.ones_like,
            )
            np.testing.assert_allclose(got, ones * expected, err_msg=name)


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (
    reductions_take_the_values_of_the_members,
    averages_divide_by_the_size_of_the_set,
    exchanges_keep_the_order_of_the_members,
    a_set_knows_its_ranks,
    only_members_may_call,
    a_root_outside_of_the_set_is_refused,
    sets_that_do_not_exist_are_refused,
    sets_that_make_no_sense_are_refused,
    a_set_of_all_ranks_is_one_of_its_own,
    a_name_can_be_in_use_in_several_sets,
    disjoint_sets_do_not_wait_for_each_other,
    sets_come_and_go_while_operations_are_in_flight,
    freed_numbers_are_used_again,
    a_disagreement_concerns_the_members_only,
    gradients_flow_within_the_set,
)
