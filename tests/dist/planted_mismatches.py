"""A rank of a job whose ranks disagree, once in each function below: run by test_culprits.py.

The odd rank, another one each time, calls what is marked ``odd``; the others what is marked
``others``. Every rank prints for each disagreement when it called, when it heard of it, and what.
"""

import json
import time
from collections.abc import Callable

import torch

import horovod.torch as hvd
from horovod.errors import DuplicateNameError, HorovodInternalError

FLOATS = torch.ones(4)
MATRIX = torch.ones(6, 4)


def shape(odd: bool) -> None:
    if odd:
        hvd.allreduce(torch.ones(5), name="shape")  # shape: odd
    else:
        hvd.allreduce(FLOATS, name="shape")  # shape: others


def number_of_dimensions(odd: bool) -> None:
    if odd:
        hvd.allreduce(torch.ones(2, 2), name="ndim")  # number_of_dimensions: odd
    else:
        hvd.allreduce(FLOATS, name="ndim")  # number_of_dimensions: others


def dtype(odd: bool) -> None:
    if odd:
        hvd.allreduce(FLOATS.double(), name="dtype")  # dtype: odd
    else:
        hvd.allreduce(FLOATS, name="dtype")  # dtype: others


def root(odd: bool) -> None:
    if odd:
        hvd.broadcast(FLOATS, 1, name="root")  # root: odd
    else:
        hvd.broadcast(FLOATS, 0, name="root")  # root: others


def reduce_op(odd: bool) -> None:
    if odd:
        hvd.allreduce(FLOATS, op=hvd.Max, name="op")  # reduce_op: odd
    else:
        hvd.allreduce(FLOATS, op=hvd.Sum, name="op")  # reduce_op: others


def prescale(odd: bool) -> None:
    if odd:
        hvd.allreduce(FLOATS, prescale_factor=0.5, name="scaled")  # prescale: odd
    else:
        hvd.allreduce(FLOATS, name="scaled")  # prescale: others


def weight(odd: bool) -> None:
    if odd:
        hvd.allreduce(FLOATS, name="weight")  # weight: odd
    else:
        hvd.allreduce(FLOATS, weight=2.0, name="weight")  # weight: others


def rows_of_alltoall(odd: bool) -> None:
    if odd:
        hvd.alltoall(torch.ones(6, 5), name="alltoall")  # rows_of_alltoall: odd
    else:
        hvd.alltoall(MATRIX, name="alltoall")  # rows_of_alltoall: others


def rows_of_allgather(odd: bool) -> None:
    if odd:
        hvd.allgather(torch.ones(6, 5), name="gather")  # rows_of_allgather: odd
    else:
        hvd.allgather(MATRIX, name="gather")  # rows_of_allgather: others


def shape_of_reducescatter(odd: bool) -> None:
    if odd:
        hvd.reducescatter(torch.ones(7, 4), name="scatter")  # shape_of_reducescatter: odd
    else:
        hvd.reducescatter(MATRIX, name="scatter")  # shape_of_reducescatter: others


def large_async(odd: bool) -> None:
    if odd:
        handle = hvd.allreduce_async(torch.ones(1_000_001), name="large")  # large_async: odd
    else:
        handle = hvd.allreduce_async(torch.ones(1_000_000), name="large")  # large_async: others
    hvd.synchronize(handle)


def order_in_group(odd: bool) -> None:
    if odd:
        hvd.grouped_allreduce([MATRIX, FLOATS], name="group")  # order_in_group: odd
    else:
        hvd.grouped_allreduce([FLOATS, MATRIX], name="group")  # order_in_group: others


def size_of_group(odd: bool) -> None:
    if odd:
        hvd.grouped_allreduce([FLOATS], name="groups")  # size_of_group: odd
    else:
        hvd.grouped_allreduce([FLOATS, MATRIX], name="groups")  # size_of_group: others


def ranks_of_process_set(odd: bool) -> None:
    if odd:
        hvd.add_process_set([0, 2])  # ranks_of_process_set: odd
    else:
        hvd.add_process_set([0, 1])  # ranks_of_process_set: others


def kind_unnamed(odd: bool) -> None:
    if odd:
        hvd.allgather(FLOATS)  # kind_unnamed: odd
    else:
        hvd.allreduce(FLOATS)  # kind_unnamed: others


def skipped_unnamed(odd: bool) -> None:
    if not odd:
        hvd.allreduce(FLOATS)  # skipped_unnamed: others
    hvd.broadcast(FLOATS, 0)  # skipped_unnamed: odd


def extra_unnamed(odd: bool) -> None:
    if odd:
        hvd.broadcast(FLOATS, 0)  # extra_unnamed: odd
    hvd.allreduce(FLOATS)  # extra_unnamed: others


def duplicate(odd: bool) -> None:
    """Only the odd rank hears of it, at once; the operation of that name goes on."""
    if not odd:
        hvd.barrier()  # until the other rank has tried
        hvd.allreduce(FLOATS, name="twice")
        return
    first = hvd.allreduce_async(FLOATS, name="twice")
    try:
        hvd.allreduce(FLOATS, name="twice")
    finally:
        hvd.barrier()
        hvd.synchronize(first)


MISMATCHES: list[Callable[[bool], None]] = [
    shape,
    number_of_dimensions,
    dtype,
    root,
    reduce_op,
    prescale,
    weight,
    rows_of_alltoall,
    rows_of_allgather,
    shape_of_reducescatter,
    large_async,
    order_in_group,
    size_of_group,
    ranks_of_process_set,
    kind_unnamed,
    skipped_unnamed,
    extra_unnamed,
    duplicate,
]


def odd_rank_of(index: int, num_ranks: int) -> int:
    return index % num_ranks


def disagree(index: int) -> dict[str, object]:
    mismatch = MISMATCHES[index]
    odd = odd_rank_of(index, hvd.size()) == hvd.rank()
    hvd.barrier()
    told = {"mismatch": mismatch.__name__, "rank": hvd.rank(), "odd": odd}
    told["called"] = time.monotonic()
    try:
        mismatch(odd)
    except (HorovodInternalError, DuplicateNameError) as error:
        told |= {"heard": time.monotonic(), "kind": type(error).__name__, "text": str(error)}
    return told


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    for index in range(len(MISMATCHES)):
        print(json.dumps(disagree(index)), flush=True)
    # The job is as good as before.
    assert hvd.allreduce(FLOATS, op=hvd.Sum).tolist() == [hvd.size()] * 4
    print("went on", flush=True)


if __name__ == "__main__":
    main()
