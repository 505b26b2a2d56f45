"""Weights of ranks and backward passes in PyTorch, against one process in float64.

The gradient of a step is the mean over all samples, times the number of passes; a pass of weight 0
counts for nothing, and its gradients may be no numbers. Parameters may be left out of passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples
from thread_ranks import ThreadRanks

import horovod.torch as hvd

F64 = torch.float64
ROWS = 30
NAMES = ("dense", "scalar", "sparse", "strided")
WEIGHTS = (0.0, 0.0, 1.0, 2.0, 3.5, 100.0)
NO_NUMBERS = (0.0, float("nan"), float("inf"))


@dataclass(frozen=True)
class Pass:
    """One backward pass of one rank.

    Attributes:
        weight: of its gradients.
        used: which parameters it uses.
        noise: what is added to its gradients, if the weight is 0.
    """

    weight: float
    used: tuple[bool, ...]
    noise: float


@dataclass(frozen=True)
class Program:
    """Steps of all ranks, by step, rank and pass; and how they are run.

    Attributes:
        is_source: whether the optimizer asks for the weights, instead of being told.
        keeps_gradients: whether steps add to the gradients of those before.
    """

    steps: tuple[tuple[tuple[Pass, ...], ...], ...]
    buckets: bool
    is_source: bool
    keeps_gradients: bool
    predivide_factor: float


def parameters() -> dict[str, torch.nn.Parameter]:
    return {
        "dense": torch.nn.Parameter(torch.zeros(3, 2, dtype=F64)),
        "scalar": torch.nn.Parameter(torch.zeros((), dtype=F64)),
        "sparse": torch.nn.Parameter(torch.zeros(ROWS, 2, dtype=F64)),
        "strided": torch.nn.Parameter(torch.zeros(2, 3, dtype=F64).t()),
    }


def gradient_of(name: str, where: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The gradient of a parameter in a pass, as an array."""
    generator = np.random.default_rng((NAMES.index(name), *where))
    shape = tuple(parameters()[name].shape)
    values = generator.normal(size=shape)
    return values * (np.arange(ROWS) % 7 == where[1])[:, None] if name == "sparse" else values


def backward(params: dict[str, torch.nn.Parameter], each: Pass, where: tuple[int, ...]) -> None:
    loss = torch.zeros((), dtype=F64)
    for name, is_used in zip(NAMES, each.used, strict=True):
        if not is_used:
            continue
        values = torch.tensor(gradient_of(name, where), dtype=F64)
        if each.weight == 0.0:
            values = values + each.noise
        if name == "sparse":
            rows = torch.arange(ROWS)[torch.arange(ROWS) % 7 == where[1]]
            chosen = torch.nn.functional.embedding(rows, params[name], sparse=True)
            loss = loss + (chosen * values[rows]).sum()
        else:
            loss = loss + (params[name] * values).sum()
    if loss.requires_grad:
        loss.backward()


def expected(program: Program) -> list[dict[str, np.ndarray[Any, Any] | None]]:
    """What one process with all samples has as gradients after each step."""
    seen: list[dict[str, np.ndarray[Any, Any] | None]] = []
    before: dict[str, np.ndarray[Any, Any] | None] = dict.fromkeys(NAMES)
    for number, ranks in enumerate(program.steps):
        total = sum(each.weight for passes in ranks for each in passes)
        now: dict[str, np.ndarray[Any, Any] | None] = {}
        for index, name in enumerate(NAMES):
            value = before[name] if program.keeps_gradients else None
            for rank, passes in enumerate(ranks):
                counts = sum(each.weight for each in passes) > 0.0
                for k, each in enumerate(passes):
                    if each.used[index] and counts:
                        share = len(passes) * each.weight / total
                        old = 0.0 if value is None else value
                        value = old + share * gradient_of(name, (number, rank, k))
            now[name] = value
        seen.append(now)
        before = now
    return seen


def run(ranks: ThreadRanks, program: Program) -> list[list[dict[str, Any]]]:
    def body(rank: int) -> list[dict[str, Any]]:
        params = parameters()
        weights = [each.weight for step in program.steps for each in step[rank]]
        asked = iter(weights)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params.values(), lr=0.0),
            params.items(),
            backward_passes_per_step=len(program.steps[0][rank]),
            gradient_predivide_factor=program.predivide_factor,
            gradient_buckets=program.buckets,
            weight=(lambda: next(asked)) if program.is_source else None,
        )
        seen = []
        for number, step in enumerate(program.steps):
            if not program.keeps_gradients:
                optimizer.zero_grad()
            for k, each in enumerate(step[rank]):
                if not program.is_source:
                    optimizer.set_weight(each.weight)
                backward(params, each, (number, rank, k))
            optimizer.synchronize()
            gradients = {name: param.grad for name, param in params.items()}
            seen.append(
                {
                    name: None if gradient is None else gradient.to_dense().numpy().copy()
                    for name, gradient in gradients.items()
                }
            )
        return seen

    return ranks.run(body)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size, num_passes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    is_source = draw(st.booleans())
    often = st.sampled_from([True, True, True, False])
    # A source is asked once in each pass that has a gradient.
    first = st.just(True) if is_source else often
    each = st.builds(
        Pass,
        st.sampled_from(WEIGHTS),
        st.tuples(first, *[often for _ in NAMES[1:]]),
        st.sampled_from(NO_NUMBERS),
    )
    step = st.tuples(*[st.tuples(*[each] * num_passes)] * size).filter(
        lambda ranks: any(each.weight for passes in ranks for each in passes)
    )
    steps = tuple(draw(st.lists(step, min_size=1, max_size=5)))
    # A gradient that is kept is that of the average; a rank of weight 0 has the same, but does not
    # count, so that steps add up only where all count.
    counts = all(sum(p.weight for p in passes) > 0.0 for ranks in steps for passes in ranks)
    keeps = draw(st.booleans()) if counts else False
    return Program(steps, draw(st.booleans()), is_source, keeps, draw(st.sampled_from([1.0, 2.0])))


@pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")
@examples()
@given(program=programs())
def test_the_gradient_is_that_of_one_process(
    jobs: dict[int, ThreadRanks], program: Program
) -> None:
    size = len(program.steps[0])
    if size not in jobs or jobs[size].failed:
        jobs[size] = ThreadRanks(size)
    meant = expected(program)
    for rank, mine in enumerate(run(jobs[size], program)):
        for number, (got, wanted) in enumerate(zip(mine, meant, strict=True)):
            for name in NAMES:
                where = f"rank {rank}, step {number}, {name}"
                value = wanted[name]
                if value is None:
                    assert got[name] is None, where
                else:
                    np.testing.assert_allclose(got[name], value, 1e-12, 1e-13, err_msg=where)
