"""Collectives of arrays that are no memory of this host's processors, or lie on several devices.

They are copied to NumPy's arrays, which the engine takes, and the results back. In jitted programs
a callback of JAX's does it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._native import Buffer
from horovod._rank import context
from horovod._train.kernel_jobs import DEFAULT_JOB
from horovod._train.process_set_table import table_of
from horovod.errors import NotInitializedError, UsageError
from horovod.jax.collective import KINDS
from horovod.jax.devices import devices_of, put_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod._rank.group import Group
    from horovod._settings.config import Config
    from horovod.jax.collective import Collective

_logger = logging.getLogger(__name__)


@functools.cache
def warn_of_copies() -> None:
    """Says, once in a process, what collectives of arrays on GPUs cost."""
    _logger.warning(
        "horovod.jax copies arrays on a GPU to host memory for each collective, and the results "
        "back; the GPU waits meanwhile. docs/jax.md, GPUs, says what that costs, and what to do"
    )


class _Groups:
    """The groups of this process's jobs, by the numbers that programs carry; see kernel_jobs."""

    def __init__(self) -> None:
        self._worlds: dict[int, Group] = {}

    def begun(self, config: Config, group: Group, number: int) -> None:
        self._worlds[number] = group

    def ended(self, group: Group) -> None:
        self._worlds = {n: known for n, known in self._worlds.items() if known is not group}

    def of(self, collective: Collective) -> Group:
        worlds = self._worlds
        world = worlds.get(collective.job)
        if world is None and collective.job == DEFAULT_JOB and len(worlds) == 1:
            (world,) = worlds.values()
        if world is None:
            raise NotInitializedError(
                "Horovod has not been initialized, or the job of this program has ended; call "
                "hvd.init() first"
            )
        number = collective.process_set
        group = table_of(world).group_of(number) if number else world
        if group is None:
            raise UsageError(f"{collective.name}: process set {number} is not registered")
        return group


class _Counts:
    """The numbers of collectives that have been started and have ended here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started = 0
        self.ended = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self.started += 1
        try:
            yield
        finally:
            with self._lock:
                self.ended += 1


_groups = _Groups()
_counts = _Counts()
context.listen(_groups)


def num_ended() -> int:
    """Return how many collectives on copies have ended in this process."""
    return _counts.ended


def is_in_flight() -> bool:
    """Whether a collective on copies has not ended yet."""
    ended = _counts.ended
    return _counts.started > ended


def run(
    operands: Sequence[Any], collective: Collective, name: str, shapes: Sequence[tuple[int, ...]]
) -> list[Any]:
    """Runs a collective on arrays of NumPy, and waits for its end.

    Args:
        operands: the arrays, then the weight of a weighted collective.
        collective: what to do.
        name: what the ranks agree on.
        shapes: of the results.

    Returns:
        New arrays of NumPy.

    Raises:
        UsageError: the arguments do not fit to the job that runs now.
        HorovodInternalError: the job failed, or the ranks disagree.
    """
    with _counts.one():
        return _run(operands, collective, name, shapes)


def run_now(operands: Sequence[Any], collective: Collective) -> list[Any]:
    """Runs a collective on arrays, wherever they are; the results are of the same kind and place.

    Args:
        operands: arrays of JAX or NumPy, then the weight of a weighted collective.
        collective: what to do.
    """
    if any(device.platform != "cpu" for device in devices_of(operands)):
        warn_of_copies()
    arrays = operands[: len(operands) - collective.weighted]
    shapes = [collective.shape_of_result(i, array.shape) for i, array in enumerate(arrays)]
    results = run(
        [np.asarray(operand) for operand in operands], collective, collective.name, shapes
    )
    return [put_back(result, array) for result, array in zip(results, arrays, strict=True)]


def callback_of(
    collective: Collective, name: str, shapes: Sequence[tuple[int, ...]]
) -> Callable[..., tuple[Any, ...]]:
    """Return the callback of a program; it takes the operands and the link to the collective
    before.

    Returns:
        A function that returns the results and that link, all of them arrays of NumPy. Its errors
        are RuntimeErrors in whose text ``horovod.jax.errors`` finds those of ``horovod.errors``.
    """

    def call(*operands: Any) -> tuple[Any, ...]:
        *given, link = (np.asarray(operand) for operand in operands)
        try:
            return (*run(given, collective, name, shapes), link)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"horovod.errors.{type(error).__name__}: {error}") from None

    return call


def _run(
    operands: Sequence[Any], collective: Collective, name: str, shapes: Sequence[tuple[int, ...]]
) -> list[Any]:
    group = _groups.of(collective)
    if collective.depends_on_size and collective.size != group.size:
        raise UsageError(
            f"{name}: the program was compiled for a process set of {collective.size} ranks, which "
            f"has {group.size} now; trace it again (jax.clear_caches())"
        )
    arrays = [np.require(operand, requirements="C") for operand in operands]
    weight = float(arrays.pop()) if collective.weighted else None
    errors, arrays = arrays[: collective.first], arrays[collective.first :]
    errors = _own_errors(errors, group.engine.rank)
    shapes = list(shapes)[collective.first :]
    if collective.tree is not None:
        arrays.append(np.empty(collective.tree.mark, arrays[0].dtype))
        shapes.append(collective.tree.mark)
    pairs = list(zip(shapes, arrays, strict=True))
    results = [] if collective.gathers else [np.empty(shape, each.dtype) for shape, each in pairs]
    handle = group.engine.submit(
        KINDS[collective.kind], name, [_view(array) for array in arrays],
        [_view(result) for result in results], waits_next=True, call_site=collective.call_site,
        prefix=f"grouped_{collective.kind}" if collective.grouped else collective.kind,
        reduce_op=collective.op, prescale=collective.prescale, postscale=collective.postscale,
        root=collective.root, process_set=group.process_set_id,
        keep_alive=(arrays, results, errors),
        quantization=collective.quantization, residuals=_residuals_of(errors, arrays),
        splits=collective.table[group.rank] if collective.table else None, weight=weight,
    )  # fmt: skip
    handle.wait()
    if collective.gathers:
        arrived = handle.results()
        results = [_copy(each, *pair, name) for each, pair in zip(arrived, pairs, strict=True)]
    return [*errors, *results[: len(results) - (collective.tree is not None)]]


def _own_errors(given: list[Any], rank: int) -> list[Any]:
    """Return what this rank keeps of rounding errors, in memory of its own, and this rank."""
    if not given:
        return []
    is_own = int(given[-1]) == rank
    kept = [np.array(each) if is_own else np.zeros_like(each) for each in given[:-1]]
    return [*kept, np.asarray(rank, np.int32)]


def _residuals_of(errors: list[Any], arrays: list[Any]) -> list[Buffer]:
    """Return one for each array; what ranks compare of a tree has no values."""
    if not errors:
        return []
    marks = arrays[len(errors) - 1 :]
    return [_view(each) for each in [*errors[:-1], *(np.empty(m.shape, np.float32) for m in marks)]]


def _view(array: Any) -> Buffer:
    return Buffer(array.ctypes.data, array.dtype.name, array.shape)


def _copy(arrived: Any, shape: tuple[int, ...], array: Any, name: str) -> Any:
    """The engine's array; NumPy has no name for some dtypes of JAX, and so no view of it."""
    if arrived.shape != shape:
        raise UsageError(
            f"{name}: what arrived has the shape {list(arrived.shape)}, but the program was "
            f"compiled for {list(shape)}: within jit all ranks give equal numbers of rows, or "
            "sizes="
        )
    copied = np.empty(shape, array.dtype)
    if copied.nbytes:
        ctypes.memmove(copied.ctypes.data, arrived.address, copied.nbytes)
    return copied
