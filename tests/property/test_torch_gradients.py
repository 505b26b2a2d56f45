"""Gradients of PyTorch in any layout, kept by anybody, against one process without Horovod.

Both sides run the same program: a plain one on copies of all ranks' parameters, whose gradients are
averaged in place, and one with DistributedOptimizer on ranks that are threads. Whatever a program
can see must be the same: gradients, the arrays they are views of, and everything that was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples
from thread_ranks import ThreadRanks

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

Zeroing = Literal["none", "zeros", "not at all"]

F64 = torch.float64
SHAPES = ((), (1,), (5,), (2, 3))
PARAMETERS = ("plain", "transposed", "part of an array", "expanded")
GRADIENTS = ("none", "own", "part of an array", "whole array", "every other", "shared")
HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda gradient: gradient,
    "view": lambda gradient: gradient.view_as(gradient),
    "element": lambda gradient: gradient.reshape(-1)[:1] if gradient.is_contiguous() else gradient,
    "detached": lambda gradient: gradient.detach(),
    "data": lambda gradient: gradient.data,
    "array": lambda gradient: gradient.numpy(),
    "DLPack": np.from_dlpack,
    "storage": lambda gradient: torch.empty(0, dtype=F64).set_(gradient.untyped_storage()),
}
PASSES = 2


@dataclass(frozen=True)
class Layout:
    """What a parameter and its first gradient are.

    Attributes:
        shape: of both.
        parameter, gradient: one of PARAMETERS and of GRADIENTS.
    """

    shape: tuple[int, ...]
    parameter: str
    gradient: str


@dataclass(frozen=True)
class Step:
    """What a program does in a step.

    Attributes:
        zeroing: how it empties the gradients before.
        used: on each rank, in each pass: the parameters that it uses.
        backwards: on each rank: whether the gradients come in the reverse order.
        kept: for each parameter, what is kept of its gradient, and whether before it is reduced.
        forgets: whether everything that was kept before is dropped first.
    """

    zeroing: Zeroing
    used: tuple[tuple[tuple[bool, ...], ...], ...]
    backwards: tuple[bool, ...]
    kept: tuple[tuple[str, bool], ...]
    forgets: bool


@dataclass(frozen=True)
class Program:
    """Layouts, steps, and whether gradients may live in buckets."""

    size: int
    passes: int
    buckets: bool
    layouts: tuple[Layout, ...]
    steps: tuple[Step, ...]


@dataclass
class Replica:
    """The parameters of one rank, and what its program keeps."""

    program: Program
    params: list[torch.Tensor] = field(default_factory=list)
    arrays: list[torch.Tensor] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrays.append(torch.ones(6, dtype=F64))
        for layout in self.program.layouts:
            param = torch.nn.Parameter(self._parameter(layout))
            param.grad = self._gradient(layout, param)
            self.params.append(param)

    def _parameter(self, layout: Layout) -> torch.Tensor:
        shape = layout.shape
        if layout.parameter == "transposed":
            return torch.ones(shape[::-1], dtype=F64).permute(tuple(range(len(shape)))[::-1])
        if layout.parameter == "expanded":
            return torch.ones((), dtype=F64).expand(shape)
        return _within(shape) if layout.parameter == "part of an array" else _ones(shape)

    def _gradient(self, layout: Layout, param: torch.Tensor) -> torch.Tensor | None:
        if layout.gradient == "none":
            return None
        if layout.gradient == "own":
            return torch.ones_like(param, memory_format=torch.contiguous_format)
        if layout.gradient == "every other":
            array = torch.ones(*layout.shape, 2, dtype=F64)
            self.arrays.append(array)
            return array[..., 0]
        if layout.gradient == "shared":
            return self.arrays[0][: param.numel()].view(layout.shape)
        room = 3 if layout.gradient == "part of an array" else 0
        array = torch.ones(param.numel() + room, dtype=F64)
        self.arrays.append(array)
        return array[room:].view(layout.shape)

    def zero(self, zeroing: Zeroing, optimizer: torch.optim.Optimizer) -> None:
        if zeroing != "not at all":
            optimizer.zero_grad(set_to_none=zeroing == "none")

    def backward(self, rank: int, number: int, used: tuple[bool, ...], is_backwards: bool) -> None:
        terms = []
        for index, (param, is_used) in enumerate(zip(self.params, used, strict=True)):
            generator = np.random.default_rng((rank, number, index))
            factors = torch.tensor(generator.integers(-8, 9, tuple(param.shape)) * 6.0, dtype=F64)
            if is_used:
                terms.append((param, factors))
        if is_backwards:
            terms.reverse()
        if terms:
            torch.stack([(param * factors).sum() for param, factors in terms]).sum().backward()

    def keep(self, step: Step, before: bool) -> None:
        for param, (holder, is_before) in zip(self.params, step.kept, strict=True):
            if param.grad is not None and holder != "nothing" and is_before == before:
                self.kept.append(HOLDERS[holder](param.grad))

    def seen(self) -> list[Any]:
        """Copies of everything that the program sees now."""
        gradients = [None if p.grad is None else np.array(p.grad) for p in self.params]
        return [*gradients, *map(np.array, self.arrays), *map(np.array, self.kept)]


def _ones(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape, dtype=F64)


def _within(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(int(np.prod(shape)) + 4, dtype=F64)[2:-2].view(shape)


def _run_alone(program: Program) -> list[list[list[Any]]]:
    """What each rank must see after each step."""
    replicas = [Replica(program) for _ in range(program.size)]
    optimizers = [torch.optim.SGD(replica.params, lr=0.0) for replica in replicas]
    seen: list[list[list[Any]]] = [[] for _ in replicas]
    for number, step in enumerate(program.steps):
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            _compute(replica, optimizer, rank, number, step)
        for params in zip(*(replica.params for replica in replicas), strict=True):
            _average(params)
        for rank, replica in enumerate(replicas):
            replica.keep(step, before=False)
            seen[rank].append(replica.seen())
    return seen


def _compute(
    replica: Replica, optimizer: torch.optim.Optimizer, rank: int, number: int, step: Step
) -> None:
    if step.forgets:
        replica.kept.clear()
    replica.zero(step.zeroing, optimizer)
    for index in range(replica.program.passes):
        used, is_backwards = step.used[rank][index], step.backwards[rank]
        replica.backward(rank, number * PASSES + index, used, is_backwards)
    replica.keep(step, before=True)


def _average(params: tuple[torch.Tensor, ...]) -> None:
    gradients = [param.grad for param in params]
    if all(gradient is None for gradient in gradients):
        return
    mean = torch.stack([_zeros(p) if p.grad is None else p.grad.clone() for p in params]).mean(0)
    for param in params:
        if param.grad is None:
            param.grad = mean.clone()
        else:
            param.grad.copy_(mean)


def _zeros(param: torch.Tensor) -> torch.Tensor:
    return torch.zeros(param.shape, dtype=F64)


def _run_with_horovod(ranks: ThreadRanks, program: Program) -> list[list[list[Any]]]:
    def body(rank: int) -> list[list[Any]]:
        replica = Replica(program)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(replica.params, lr=0.0),
            [(f"p{index}", param) for index, param in enumerate(replica.params)],
            backward_passes_per_step=program.passes,
            gradient_buckets=program.buckets,
        )
        seen = []
        for number, step in enumerate(program.steps):
            _compute(replica, optimizer, rank, number, step)
            optimizer.synchronize()
            replica.keep(step, before=False)
            seen.append(replica.seen())
        return seen

    return ranks.run(body)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size = draw(st.integers(2, 3))
    passes = draw(st.integers(1, PASSES))
    layout = st.builds(
        Layout, st.sampled_from(SHAPES), st.sampled_from(PARAMETERS), st.sampled_from(GRADIENTS)
    )
    layouts = tuple(draw(st.lists(layout, min_size=1, max_size=4)))
    often = st.sampled_from([True, True, True, False])
    holder = st.sampled_from(["nothing", "nothing", *HOLDERS])
    step = st.builds(
        Step,
        st.sampled_from(("none", "none", "zeros", "not at all")),
        st.tuples(*[st.tuples(*[st.tuples(*[often for _ in layouts])] * passes)] * size),
        st.tuples(*[st.booleans()] * size),
        st.tuples(*[st.tuples(holder, st.booleans()) for _ in layouts]),
        st.booleans(),
    )
    steps = tuple(draw(st.lists(step, min_size=3, max_size=7)))
    return Program(size, passes, draw(st.booleans()), layouts, steps)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")
@examples()
@given(program=programs())
def test_gradients_stay_where_they_are(jobs: dict[int, ThreadRanks], program: Program) -> None:
    if program.size not in jobs or jobs[program.size].failed:
        jobs[program.size] = ThreadRanks(program.size)
    with_horovod = _run_with_horovod(jobs[program.size], program)
    for rank, (mine, expected) in enumerate(zip(with_horovod, _run_alone(program), strict=True)):
        for number, (seen, meant) in enumerate(zip(mine, expected, strict=True)):
            for index, (got, wanted) in enumerate(zip(seen, meant, strict=True)):
                where = f"rank {rank}, step {number}, item {index}"
                assert (got is None) == (wanted is None), where
                if wanted is not None:
                    np.testing.assert_allclose(got, wanted, rtol=1e-14, err_msg=where)
