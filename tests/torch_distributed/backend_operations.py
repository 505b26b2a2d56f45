"""The operations of process groups, each as a function that can run on any backend.

A case ``case(group, rank, size, make)`` calls one operation and returns the tensors that it has
written. ``make(shape, seed)`` makes the input of a rank: the same on every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

Tensors = list[torch.Tensor]
Make = Callable[[tuple[int, ...], int], torch.Tensor]
Case = Callable[[Any, int, int, Make], Tensors]

SHAPES = ((), (1,), (7,), (4, 3), (0, 3), (5000,))
"""Without dimensions, with an element, uneven, of rows, empty, and too large for a message."""


def all_reduce(op: Any) -> Case:
    """Reduce tensors of every shape in place."""

    def case(group: Any, rank: int, size: int, make: Make) -> Tensors:
        tensors = [make(shape, rank) for shape in SHAPES]
        for tensor in tensors:
            options = dist.AllreduceOptions()
            options.reduceOp = op
            group.allreduce([tensor], options).wait()
        return tensors

    return case


def all_reduce_coalesced(group: Any, rank: int, size: int, make: Make) -> Tensors:
    tensors = [make(shape, rank) for shape in ((7,), (4, 3), (5000,))]
    group.allreduce_coalesced(tensors, c10d.AllreduceCoalescedOptions()).wait()
    return tensors


def all_reduce_strided(group: Any, rank: int, size: int, make: Make) -> Tensors:
    """Every second row, and a transposed tensor, which no memory of one piece holds."""
    whole = make((8, 3), rank)
    rows, turned = whole[::2], make((4, 5), rank).t()
    for tensor in (rows, turned):
        copy = tensor.clone(memory_format=torch.contiguous_format)
        if isinstance(group, dist.ProcessGroup) and group.name() == "horovod":
            group.allreduce([tensor], dist.AllreduceOptions()).wait()
        else:
            group.allreduce([copy], dist.AllreduceOptions()).wait()
            tensor.copy_(copy)
    return [whole, turned]


def reduce(group: Any, rank: int, size: int, make: Make) -> Tensors:
    """The result of the root; gloo leaves anything in the tensors of others."""
    results = []
    for root in range(size):
        for shape in SHAPES:
            tensor = make(shape, rank)
            options = dist.ReduceOptions()
            options.rootRank = root
            group.reduce([tensor], options).wait()
            results += [tensor] if rank == root else []
    return results


def broadcast(group: Any, rank: int, size: int, make: Make) -> Tensors:
    results = []
    for root in range(size):
        for shape in SHAPES:
            options = dist.BroadcastOptions()
            options.rootRank = root
            results.append(make(shape, rank))
            group.broadcast(results[-1:], options).wait()
    return results


def all_gather(group: Any, rank: int, size: int, make: Make) -> Tensors:
    results = []
    for shape in SHAPES[:-2] + SHAPES[-1:]:
        outputs = [make(shape, 9) for _ in range(size)]
        group.allgather([outputs], [make(shape, rank)], c10d.AllgatherOptions()).wait()
        results += outputs
    return results


def all_gather_single(group: Any, rank: int, size: int, make: Make) -> Tensors:
    results = []
    for shape in ((1,), (7,), (4, 3), (5000,)):
        results.append(make((shape[0] * size, *shape[1:]), 9))
        group._allgather_base(results[-1], make(shape, rank), c10d.AllgatherOptions()).wait()
    return results


def all_gather_coalesced(group: Any, rank: int, size: int, make: Make) -> Tensors:
    shapes = ((7,), (4, 3), (5000,))
    outputs = [make((shape[0] * size, *shape[1:]), 9) for shape in shapes]
    inputs = [make(shape, rank) for shape in shapes]
    group.allgather_into_tensor_coalesced(outputs, inputs, c10d.AllgatherOptions()).wait()
    return outputs


def reduce_scatter(op: Any) -> Case:
    """Reduce a list of tensors, one tensor, and several tensors."""

    def case(group: Any, rank: int, size: int, make: Make) -> Tensors:
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        outputs = [make(shape, 9) for shape in ((7,), (7,), (4, 3), (3000,))]
        listed = [make((7,), rank * 10 + target) for target in range(size)]
        group.reduce_scatter([outputs[0]], [listed], options).wait()
        group._reduce_scatter_base(outputs[1], make((7 * size,), rank), options).wait()
        inputs = [make((4 * size, 3), rank), make((3000 * size,), rank)]
        group.reduce_scatter_tensor_coalesced(outputs[2:], inputs, options).wait()
        return outputs

    return case


def all_to_all_single(group: Any, rank: int, size: int, make: Make) -> Tensors:
    """Equal rows, then as many rows for rank i as i + 1, from rank j times j."""
    options = dist.AllToAllOptions()
    even = make((2 * size, 3), 9)
    group.alltoall_base(even, make((2 * size, 3), rank), [], [], options).wait()
    sent = [(to + 1) * rank for to in range(size)]
    received = [(rank + 1) * source for source in range(size)]
    uneven = make((sum(received), 3), 9)
    group.alltoall_base(uneven, make((sum(sent), 3), rank), received, sent, options).wait()
    return [even, uneven]


def all_to_all(group: Any, rank: int, size: int, make: Make) -> Tensors:
    inputs = [make((4, 3), rank * 10 + to) for to in range(size)]
    outputs = [make((4, 3), 9) for source in range(size)]
    group.alltoall(outputs, inputs, dist.AllToAllOptions()).wait()
    return outputs


def gather(group: Any, rank: int, size: int, make: Make) -> Tensors:
    results = []
    for root in range(size):
        outputs = [[make((4, 3), 9) for _ in range(size)]] if rank == root else []
        options = dist.GatherOptions()
        options.rootRank = root
        group.gather(outputs, [make((4, 3), rank)], options).wait()
        results += [tensor for listed in outputs for tensor in listed]
    return results


def scatter(group: Any, rank: int, size: int, make: Make) -> Tensors:
    results = []
    for root in range(size):
        inputs = [[make((4, 3), 10 * root + to) for to in range(size)]] if rank == root else []
        options = dist.ScatterOptions()
        options.rootRank = root
        results.append(make((4, 3), 9))
        group.scatter(results[-1:], inputs, options).wait()
    return results


def barrier(group: Any, rank: int, size: int, make: Make) -> Tensors:
    works = [group.barrier(dist.BarrierOptions()) for _ in range(3)]
    for work in works:
        work.wait()
    return []


OPS = dist.ReduceOp
CASES: dict[str, Case] = {
    **{f"all_reduce {op}": all_reduce(op) for op in (OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT)},
    "all_reduce_coalesced": all_reduce_coalesced,
    "all_reduce_strided": all_reduce_strided,
    "reduce": reduce,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "all_gather_single": all_gather_single,
    "all_gather_coalesced": all_gather_coalesced,
    **{f"reduce_scatter {op}": reduce_scatter(op) for op in (OPS.SUM, OPS.MAX)},
    "all_to_all_single": all_to_all_single,
    "all_to_all": all_to_all,
    "gather": gather,
    "scatter": scatter,
    "barrier": barrier,
}
BITWISE_CASES: dict[str, Case] = {
    f"all_reduce {op}": all_reduce(op) for op in (OPS.BAND, OPS.BOR, OPS.BXOR)
}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}


def maker(dtype: torch.dtype) -> Make:
    """Return what makes small numbers, whose sums and products are exact in every dtype."""

    def make(shape: tuple[int, ...], seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(1, 3, shape, generator=generator).to(dtype)

    return make
