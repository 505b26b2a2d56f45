"""Many Python threads of each rank that submit to one engine, and what each of them must get."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from horovod._native import Buffer
from horovod._rank.reduction import PLAIN_SUM, ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horovod._native import Handle
    from horovod._rank.group import Group

Values = NDArray[np.float64]
_PATIENCE_S = 60.0


def run_threads(num_threads: int, body: Callable[[int], None]) -> None:
    """Calls ``body(number)`` on that many threads at once; raises what the first of them raised."""
    with ThreadPoolExecutor(num_threads) as pool:
        for future in [pool.submit(body, number) for number in range(num_threads)]:
            future.result()


def await_end(handle: Handle) -> None:
    """Waits for an operation.

    Raises:
        AssertionError: it did not end in time.
        HorovodInternalError: it failed.
    """
    assert handle.wait(_PATIENCE_S), "an operation did not end"


class Tensors:
    """What an operation keeps alive; others may look whether it still is."""

    def __init__(self, *arrays: Values) -> None:
        self.buffers = [Buffer.from_array(array) for array in arrays]
        self._arrays = arrays


def given(rank: int, seed: int, count: int) -> Values:
    """What a rank gives to an operation."""
    return np.arange(count, dtype=np.float64) + 100.0 * rank + seed


class Check:
    """An operation in flight, and what it has to give.

    Args:
        handle: of the operation.
        expected: the values.
        output: where they will be; None if the engine allocates them.
    """

    def __init__(self, handle: Handle, expected: Values, output: Values | None = None) -> None:
        self._handle, self._expected, self._output = handle, expected, output

    def finish(self) -> None:
        """Waits, and compares."""
        await_end(self._handle)
        got = self._output
        if got is None:
            got = np.from_dlpack(self._handle.results()[0])
        np.testing.assert_array_equal(got, self._expected)


def start(kind: int, group: Group, name: str, seed: int, count: int = 8) -> Check:
    """Submits one of five collectives with values that depend on rank and seed.

    Args:
        kind: which one, any number.
        group: its process set, of which this rank is a member.
        name: of the operation.
        seed: of the values.
        count: of elements, a multiple of the size of the set.
    """
    rank, size = group.ranks[group.rank], group.size
    mine = given(rank, seed, count)
    everyones = [given(member, seed, count) for member in group.ranks]
    options: Any = {"name": name, "waits_next": seed % 2 == 0}
    share = slice(group.rank * (count // size), (group.rank + 1) * (count // size))
    output: Values | None = None
    if kind % 5 < 3:
        output = np.zeros(count // size if kind % 5 == 2 else count)
    kept = Tensors(mine) if output is None else Tensors(mine, output)
    options["keep"] = kept
    source, target = kept.buffers[:1], kept.buffers[1:]
    if kind % 5 == 0:
        handle = group.allreduce(source, target, PLAIN_SUM, **options)
        return Check(handle, _sum(everyones), output)
    if kind % 5 == 1:
        handle = group.broadcast(source, target, group.ranks[seed % size], **options)
        return Check(handle, everyones[seed % size], output)
    if kind % 5 == 2:
        handle = group.reducescatter(source, target, op=ReduceOp.SUM, **options)
        return Check(handle, _sum(everyones)[share], output)
    if kind % 5 == 3:
        return Check(group.allgather(source, **options), np.concatenate(everyones))
    handle = group.alltoall(source, **options)
    return Check(handle, np.concatenate([values[share] for values in everyones]))


def _sum(arrays: Iterable[Values]) -> Values:
    total: Values = np.sum(list(arrays), axis=0)
    return total
