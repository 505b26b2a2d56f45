"""What hypothesis draws: engines, operations, and programs of several operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arrays import DTYPES, FLOATS
from hypothesis import strategies as st
from operations import Operation

from horovod._native import EngineOptions
from horovod._rank.reduction import ReduceOp

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

SIZES = st.integers(1, 5)

_DIMENSIONS = st.sampled_from((0, 1, 2, 3, 5, 17))
_SMALL_SHAPES = st.lists(_DIMENSIONS, max_size=3).map(tuple)
# Around the bounds of what travels with an announcement (4 KiB) and of a frame (64 KiB).
_LONG_SHAPES = st.sampled_from(((1023,), (1025,), (4097,), (33, 65), (20_011,)))
_LARGE_SHAPES = st.sampled_from(((70_001,), (131, 1031), (300_007,)))
_SHAPES = st.one_of(_SMALL_SHAPES, _SMALL_SHAPES, _SMALL_SHAPES, _LONG_SHAPES)
_FACTORS = st.sampled_from((1.0, 1.0, 0.5, -1.0, 1 / 3, 0.0, 2.0, 3.7))
# So that products stay within float16.
_PRODUCT_FACTORS = st.sampled_from((1.0, 1.0, 0.5, -1.0, 1 / 3))
_WEIGHTS = st.sampled_from((0.0, 0.5, 1.0, 3.0, 7.25))
MOVING = ("allreduce", "reducescatter", "allgather", "broadcast", "alltoall")
KINDS = (*MOVING, "barrier")


@dataclass(frozen=True)
class Settings:
    """The part of EngineOptions that changes how operations travel."""

    fusion_threshold: int = 64 << 20
    cache_capacity: int = 1024
    fuse_groups: bool = True
    deterministic: bool = False

    def options(self) -> EngineOptions:
        return EngineOptions(
            fusion_threshold=self.fusion_threshold,
            cache_capacity=self.cache_capacity,
            fuse_groups=self.fuse_groups,
            deterministic=self.deterministic,
            stall_check_time_s=0.0,
            least_log_level=2,
        )


SETTINGS = st.sampled_from(
    (
        Settings(),
        Settings(fusion_threshold=0, cache_capacity=0),
        Settings(fusion_threshold=5000, cache_capacity=2, fuse_groups=False),
        Settings(deterministic=True, cache_capacity=3),
    )
)


@st.composite
def _tensors(
    draw: DrawFn, kind: str, dtypes: tuple[str, ...], large: bool
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    shapes: SearchStrategy[tuple[int, ...]] = _SHAPES
    if large:
        shapes = st.one_of(_SHAPES, _LARGE_SHAPES)
    if kind in ("allgather", "alltoall", "reducescatter"):
        shapes = shapes.map(lambda shape: shape or (2,))
    pair = st.tuples(st.sampled_from(dtypes), shapes)
    num_tensors = 1 if kind == "alltoall" else draw(st.sampled_from((1, 1, 1, 2, 3, 7)))
    return tuple(draw(pair) for _ in range(num_tensors))


@st.composite
def _reduction(draw: DrawFn, kind: str, size: int) -> dict[str, Any]:
    ops = [ReduceOp.SUM, ReduceOp.AVERAGE]
    if kind == "allreduce":
        ops += [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.ADASUM]
    op = draw(st.sampled_from(ops))
    factors = _PRODUCT_FACTORS if op is ReduceOp.PRODUCT else _FACTORS
    drawn: dict[str, Any] = {"op": op, "prescale": draw(factors), "postscale": draw(factors)}
    if kind == "allreduce" and op is ReduceOp.AVERAGE and draw(st.booleans()):
        weights = draw(st.tuples(*[_WEIGHTS] * size))
        drawn["weights"] = weights if sum(weights) > 0.0 else (1.0,) * size
    return drawn


@st.composite
def _exchange(draw: DrawFn, size: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """Splits of an alltoall; the shape counts where they are all alike."""
    if draw(st.booleans()):
        rows = size * draw(st.integers(0, 3))
        return {"shape": (rows, *shape[1:])}
    count = st.sampled_from((0, 1, 2, 5))
    splits = tuple(tuple(draw(count) for _ in range(size)) for _ in range(size))
    return {"splits": splits, "unsent": tuple(draw(count) for _ in range(size)), "shape": shape}


def _waits_next(size: int) -> SearchStrategy[tuple[bool, ...]]:
    """All ranks alike, or each in its way."""
    alike = st.sampled_from(((), (True,) * size))
    return st.one_of(alike, alike, st.tuples(*[st.booleans()] * size))


@st.composite
def operations(
    draw: DrawFn,
    size: int,
    kinds: tuple[str, ...] = KINDS,
    dtypes: tuple[str, ...] = DTYPES,
    large: bool = False,
) -> Operation:
    """Any collective of a set of ``size`` ranks."""
    kind = draw(st.sampled_from(kinds))
    if kind == "barrier":
        return Operation(kind)
    drawn: dict[str, Any] = {}
    if kind in ("allreduce", "reducescatter"):
        drawn |= draw(_reduction(kind, size))
    floating = drawn.get("weights") is not None or drawn.get("op") is ReduceOp.ADASUM
    drawn["tensors"] = draw(_tensors(kind, FLOATS if floating else dtypes, large))
    if kind == "allgather":
        count = st.sampled_from((0, 1, 2, 3, 7))
        drawn["rows"] = tuple(
            tuple(draw(count) for _ in range(size)) for _ in range(len(drawn["tensors"]))
        )
    if kind == "alltoall":
        drawn |= draw(_exchange(size, drawn["tensors"][0][1]))
        drawn["tensors"] = ((drawn["tensors"][0][0], drawn.pop("shape")),)
    if kind == "broadcast":
        drawn["root"] = draw(st.integers(0, size - 1))
    flavours = ("small", "any", "special")
    if drawn.get("op") is ReduceOp.ADASUM:
        flavours = flavours[:2]
    return Operation(
        kind,
        in_place=draw(st.booleans()),
        waits_next=draw(_waits_next(size)),
        named=draw(st.sampled_from((True, True, False))),
        flavour=draw(st.sampled_from(flavours)),
        offset=draw(st.sampled_from((0, 0, 1, 4))),
        seed=draw(st.integers(0, 9)),
        **drawn,
    )


@st.composite
def weighted_averages(draw: DrawFn, size: int, most: int) -> tuple[Operation, ...]:
    """Averages that leave out some ranks, but not all, and values of which many are no numbers."""
    counts = draw(st.tuples(*[st.booleans()] * size).filter(lambda drawn: len({*drawn}) == 2))
    weights = tuple(draw(_WEIGHTS.filter(bool)) if each else 0.0 for each in counts)
    drawn = [
        replace(
            draw(operations(size, ("allreduce",), FLOATS, large=most == 1)),
            op=ReduceOp.AVERAGE,
            weights=weights,
            flavour="special",
        )
        for _ in range(draw(st.integers(1, most)))
    ]
    return tuple(drawn)


@dataclass(frozen=True)
class Call:
    """An operation of a phase, and the process set that runs it.

    Attributes:
        of_set: index into the sets of the program.
        operation: what its members submit.
    """

    of_set: int
    operation: Operation


@dataclass(frozen=True)
class Phase:
    """Operations in flight at the same time.

    Attributes:
        calls: what is submitted.
        submitted: for each global rank, indices of ``calls`` in the order of its submissions.
        awaited: likewise in the order of its waits.
    """

    calls: tuple[Call, ...]
    submitted: tuple[tuple[int, ...], ...]
    awaited: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Program:
    """What a job does.

    Attributes:
        size: of the job.
        settings: of its engines.
        sets: the global ranks of each process set; the first one is that of all ranks.
        phases: one after the other.
    """

    size: int
    settings: Settings
    sets: tuple[tuple[int, ...], ...]
    phases: tuple[Phase, ...]


@st.composite
def _order(draw: DrawFn, calls: tuple[Call, ...]) -> tuple[int, ...]:
    """Any order in which unnamed operations of one set stay in theirs."""
    order = draw(st.permutations(range(len(calls))))
    unnamed: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        if not call.operation.named:
            unnamed.setdefault(call.of_set, []).append(index)
    following = {of_set: iter(indices) for of_set, indices in unnamed.items()}
    kept = []
    for index in order:
        call = calls[index]
        kept.append(index if call.operation.named else next(following[call.of_set]))
    return tuple(kept)


def _one_barrier_of_each_set(calls: list[Call]) -> tuple[Call, ...]:
    """Two of them cannot be in flight."""
    seen = set()
    kept = []
    for call in calls:
        if call.operation.kind == "barrier":
            if call.of_set in seen:
                continue
            seen.add(call.of_set)
        kept.append(call)
    return tuple(kept)


@st.composite
def _phase(draw: DrawFn, size: int, sets: tuple[tuple[int, ...], ...]) -> Phase:
    drawn = []
    for _ in range(draw(st.sampled_from((1, 2, 5, 12)))):
        of_set = draw(st.integers(0, len(sets) - 1))
        drawn.append(Call(of_set, draw(operations(len(sets[of_set])))))
    calls = _one_barrier_of_each_set(drawn)
    orders = [tuple(draw(_order(calls)) for _ in range(size)) for _ in range(2)]
    return Phase(calls, orders[0], orders[1])


@st.composite
def subsets(draw: DrawFn, size: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Different process sets, none of them that of all ranks."""
    members = st.sets(st.integers(0, size - 1), min_size=1, max_size=max(1, size - 1))
    drawn = draw(st.lists(members.map(sorted).map(tuple), max_size=most, unique=True))
    return tuple(ranks for ranks in drawn if len(ranks) < size)


@st.composite
def programs(draw: DrawFn) -> Program:
    """Several phases of operations in several process sets."""
    size = draw(SIZES)
    sets = (tuple(range(size)), *draw(subsets(size, 3)))
    phases = tuple(draw(_phase(size, sets)) for _ in range(draw(st.integers(1, 3))))
    return Program(size, draw(SETTINGS), sets, phases)


@dataclass(frozen=True)
class Joining:
    """Ranks of one set with different numbers of steps, that join when they have done theirs.

    Attributes:
        size: of the job.
        settings: of its engines.
        ranks: the global ranks of the set.
        divides_by_size: whether Average goes on dividing by the size of the set.
        num_steps: of each set rank, for each round.
        steps: the operations of each step.
    """

    size: int
    settings: Settings
    ranks: tuple[int, ...]
    divides_by_size: bool
    num_steps: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Operation, ...], ...]


@st.composite
def _step(draw: DrawFn, size: int) -> tuple[Operation, ...]:
    drawn = draw(st.lists(operations(size), min_size=1, max_size=4))
    step = []
    for call in _one_barrier_of_each_set([Call(0, each) for each in drawn]):
        # Not zero for those who have not joined, whoever that is.
        weights = call.operation.weights and tuple(each or 2.0 for each in call.operation.weights)
        step.append(replace(call.operation, weights=weights))
    return tuple(step)


@st.composite
def joinings(draw: DrawFn) -> Joining:
    """Rounds of join(), with all operations before it."""
    size = draw(st.integers(2, 5))
    ranks = draw(st.sampled_from((tuple(range(size)), *draw(subsets(size, 1)))))
    steps = tuple(draw(_step(len(ranks))) for _ in range(draw(st.integers(1, 3))))
    count = st.integers(0, len(steps))
    num_steps = tuple(tuple(draw(count) for _ in ranks) for _ in range(draw(st.integers(1, 3))))
    return Joining(size, draw(SETTINGS), ranks, draw(st.booleans()), num_steps, steps)
