"""What ranks that run out of data do to the others; see :mod:`collectives` for what a check is.

Ranks that submit different numbers of operations name them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from collectives import ALL, FLOATS, NUMBERS, data, expect, expect_error, known
from process_sets import registered

from horovod._rank.reduction import ReduceOp
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

_REDUCTIONS = (
    (ReduceOp.SUM, np.add.reduce),
    (ReduceOp.MIN, np.minimum.reduce),
    (ReduceOp.MAX, np.maximum.reduce),
    (ReduceOp.PRODUCT, np.multiply.reduce),
)
# Small values travel with the announcement, large ones by themselves.
_SHAPES = ((17,), (3, 1733))


def averages_go_on_dividing_by_all_ranks(api: Api, rank: int, size: int) -> None:
    # Twice, so that the names are known in the second round, and fused.
    for first in range(size):
        # What an average is divided by depends on the dtype, and not on who has joined.
        for dtype in known(api, NUMBERS if first == 0 else ("float32", "int32")):
            if rank != first or size == 1:
                values = [data(7, shape, dtype) for shape in _SHAPES]
                tensors = [api.tensor(each, dtype) for each in values]
                for _ in range(2):
                    handles = [
                        api.start("allreduce", tensor, name=f"{dtype}.{i}")
                        for i, tensor in enumerate(tensors)
                    ]
                    for handle, each in zip(handles, values, strict=True):
                        mean = each * max(1, size - 1) / size
                        exact = mean if dtype in FLOATS else np.trunc(mean)
                        expect(api, api.finish(handle), exact, dtype, 1e-2)
            _join(api, size, first)


def _join(api: Api, size: int, first: int, **kwargs: Any) -> None:
    last = api.call("join", **kwargs)
    assert 0 <= last < size
    assert last != first or size == 1
    every = api.values(api.call("allgather", api.tensor([last], "int64"), name="last"))
    assert (every == last).all()


def a_device_that_is_not_there_is_passed_over(api: Api, rank: int, size: int) -> None:
    # As scripts name their local rank, whether or not their tensors are on GPUs.
    last = api.call("join", 99 if rank == 0 else -1)
    assert 0 <= last < size


def ranks_that_have_joined_change_no_reduction(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    for first in range(size):
        present = [r for r in range(size) if r != first]
        shapes = ((), *_SHAPES)
        for place, dtype in enumerate(known(api, ALL)) if rank != first else ():
            for number, (op, reduction) in enumerate(_REDUCTIONS):
                if dtype == "bool" and op is ReduceOp.SUM:
                    reduction = np.maximum.reduce
                # Each operation on each dtype; the shape is another one for each rank that joins.
                shape = shapes[(place + number + first) % len(shapes)]
                every = [data(r, shape, dtype, -3, 3) for r in present]
                tensor = api.tensor(data(rank, shape, dtype, -3, 3), dtype)
                got = api.call("allreduce", tensor, op=op, name="x")
                expect(api, got, reduction(every), dtype)
        _join(api, size, first)


def groups_and_scaled_tensors_are_reduced_without_the_joined(
    api: Api, rank: int, size: int
) -> None:
    if size == 1:
        return
    first = size - 1
    if rank != first:
        tensors = [api.tensor(np.full(n, rank + 1.0), "float32") for n in (1, 3000)]
        tensors.append(api.tensor(np.full(5, rank + 1), "int32"))
        total = first * (first + 1) // 2
        for _ in range(2):
            got = api.call("grouped_allreduce", tensors, name="group", op=ReduceOp.SUM)
            for each, (count, dtype) in zip(
                got, ((1, "float32"), (3000, "float32"), (5, "int32")), strict=True
            ):
                expect(api, each, np.full(count, total), dtype)
        got = api.call(
            "allreduce",
            tensors[1],
            name="scaled",
            op=ReduceOp.MIN,
            prescale_factor=-1.0,
            postscale_factor=0.5,
        )
        expect(api, got, np.full(3000, -0.5 * first), "float32")
    _join(api, size, first)


def averages_can_divide_by_those_that_have_not_joined(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    first = 0
    for _ in range(2):
        if rank != first:
            for shape in _SHAPES:
                tensor = api.tensor(np.full(shape, rank), "float64")
                got = api.call("allreduce", tensor, name="x")
                expect(api, got, np.full(shape, size / 2), "float64", 1e-15)
        _join(api, size, first, divide_by_initial_world_size=False)
    # It counts for one join only.
    got = api.call("allreduce", api.tensor([float(rank)], "float64"), name="x")
    expect(api, got, np.array([(size - 1) / 2]), "float64", 1e-15)


def weighted_averages_leave_out_the_joined(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    first = size - 1
    if rank != first:
        present = range(size - 1)
        for shape in _SHAPES:
            tensor = api.tensor(np.full(shape, rank), "float64")
            got = api.call("allreduce", tensor, name="x", weight=rank + 1.0)
            mean = sum(r * (r + 1) for r in present) / sum(r + 1 for r in present)
            expect(api, got, np.full(shape, mean), "float64", 1e-15)
    _join(api, size, first)


def ranks_that_have_joined_give_no_rows(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    for first in range(size):
        present = [r for r in range(size) if r != first]
        for dtype in ("float32", "int8") if rank != first else ():
            own = api.tensor(np.full((rank + 1, 2), rank), dtype)
            got = api.call("allgather", own, name=dtype)
            expect(api, got, np.concatenate([np.full((r + 1, 2), r) for r in present]), dtype)
            got = api.call("grouped_allgather", [own, own], name=dtype)
            assert api.values(got[1]).shape == (sum(r + 1 for r in present), 2)
            sent = api.tensor(np.full(size, rank), dtype)
            got, received = api.call("alltoall", sent, [1] * size, name=dtype)
            expect(api, got, np.array(present), dtype)
            assert list(api.values(received)) == [int(r != first) for r in range(size)]
            tensor = api.tensor(np.ones((size, 2)), dtype)
            got = api.call("reducescatter", tensor, name=dtype, op=ReduceOp.SUM)
            expect(api, got, np.full((1, 2), size - 1), dtype)
            api.call("barrier")
        _join(api, size, first)


def a_broadcast_needs_its_root(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    for first in range(size):
        for _ in range(2 if rank != first else 0):
            tensor = api.tensor(np.full(3, rank), "float32")
            error = expect_error(
                HorovodInternalError,
                lambda t=tensor, root=first: api.call("broadcast", t, root, name="lacks its root"),
            )
            assert f"rank {first}" in str(error)
            root = (first + 1) % size
            got = api.call("broadcast", tensor, root, name="has its root")
            expect(api, got, np.full(3, root), "float32")
        _join(api, size, first)
    got = api.call("broadcast", api.tensor([rank], "int32"), 0, name="lacks its root")
    expect(api, got, np.array([0]), "int32")


def ranks_with_different_numbers_of_steps_train_on(api: Api, rank: int, size: int) -> None:
    for epoch in range(6):
        steps = [1 + (r + epoch) % 3 for r in range(size)]
        for step in range(steps[rank]):
            active = sum(step < other for other in steps)
            handles = [
                api.start(
                    "allreduce", api.tensor(np.ones(n), "float32"), name=f"{n}", op=ReduceOp.SUM
                )
                for n in (1, 10, 5000)
            ]
            for handle in handles:
                assert (api.values(api.finish(handle)) == active).all()
        last = api.call("join")
        assert steps[last] == max(steps)


def a_set_joins_by_itself(api: Api, rank: int, size: int) -> None:
    if size < 3:
        return
    with registered(api, range(size - 1)) as (most,):
        if most.included():
            where = {"process_set": most}
            if rank > 0:
                tensor = api.tensor(np.ones(9), "float32")
                got = api.call("allreduce", tensor, name="x", op=ReduceOp.SUM, **where)
                expect(api, got, np.full(9, size - 2), "float32")
            assert api.call("join", **where) in range(1, size - 1)
        got = api.call("allreduce", api.tensor([1], "int32"), op=ReduceOp.SUM)
        expect(api, got, np.array([size]), "int32")


def disagreements_are_found_among_the_others(api: Api, rank: int, size: int) -> None:
    if size < 3:
        return
    if rank != 0:
        tensor = api.tensor(np.ones(3 + rank % 2), "float32")
        error = expect_error(
            HorovodInternalError, lambda: api.call("allreduce", tensor, name="differs")
        )
        assert "rank 1" in str(error)
        one = api.tensor([1], "int32")
        got = api.call("allreduce", one, name="agrees", op=ReduceOp.SUM)
        expect(api, got, np.array([size - 1]), "int32")
    _join(api, size, 0)


def operations_without_a_name_match_again_after_a_join(api: Api, rank: int, size: int) -> None:
    for round_ in range(3):
        # Each rank has had another number of them.
        steps = [(r + round_) % 3 for r in range(size)]
        for step in range(steps[rank]):
            tensor = api.tensor(np.ones(5), "float32")
            got = api.call("allreduce", tensor, op=ReduceOp.SUM)
            expect(api, got, np.full(5, sum(step < each for each in steps)), "float32")
        api.call("join")
        expect(api, api.call("allgather", api.tensor([1], "int32")), np.ones(size), "int32")


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (
    averages_go_on_dividing_by_all_ranks,
    a_device_that_is_not_there_is_passed_over,
    ranks_that_have_joined_change_no_reduction,
    groups_and_scaled_tensors_are_reduced_without_the_joined,
    averages_can_divide_by_those_that_have_not_joined,
    weighted_averages_leave_out_the_joined,
    ranks_that_have_joined_give_no_rows,
    a_broadcast_needs_its_root,
    ranks_with_different_numbers_of_steps_train_on,
    a_set_joins_by_itself,
    disagreements_are_found_among_the_others,
    operations_without_a_name_match_again_after_a_join,
)
