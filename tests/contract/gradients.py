"""What gradients of all ranks are, for random trees; see :mod:`collectives` for what a check is.

Each is compared with what one process computes in float64 from the samples of all ranks.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

ABILITIES = ("complex", "passes", "mean of passes", "weights", "weights of passes")
"""What an adapter may do beside the average of one gradient of real numbers."""

_SHAPES = ((), (3,), (2, 3))
_WEIGHTS = (0.0, 1.0, 2.5, 7.0)
_TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "complex128": 1e-12}


class Step(NamedTuple):
    """A step of an optimizer on all ranks.

    Attributes:
        gradients: by rank and pass, trees of one level.
        weights: by rank and pass; None for none.
        is_mean: whether the passes are averaged instead of added.
    """

    gradients: list[list[dict[str, Any]]]
    weights: list[list[float]] | None
    is_mean: bool


def gradients_of_random_trees_equal_one_process(api: Api, rank: int, size: int) -> None:
    for draw, (passes, weighs) in enumerate(itertools.product((1, 2, 3), (False, True))):
        generator = np.random.default_rng((draw, size))
        step = _drawn(generator, size, passes, weighs, api.abilities)
        weights = None if step.weights is None else step.weights[rank]
        got = api.reduced(step.gradients[rank], weights, step.is_mean)
        expected = _of_one_process(step)
        assert list(got) == list(expected)
        for name, values in expected.items():
            dtype = step.gradients[0][0][name].dtype.name
            assert got[name].shape == values.shape
            np.testing.assert_allclose(
                got[name], values, rtol=_TOLERANCE[dtype], atol=_TOLERANCE[dtype],
                err_msg=f"draw {draw}, {name}, {dtype}, weights {step.weights}",
            )  # fmt: skip


def _drawn(
    generator: Any, size: int, passes: int, weighs: bool, abilities: tuple[str, ...]
) -> Step:
    """A step that an adapter with these abilities can take."""
    passes = passes if "passes" in abilities else 1
    is_mean = bool(generator.integers(2)) and (passes == 1 or "mean of passes" in abilities)
    weighs = weighs and ("weights" if passes == 1 else "weights of passes") in abilities
    dtypes = ["float32", "float64", *(["complex128"] if "complex" in abilities else [])]
    names = sorted(generator.permutation(["a", "b", "c", "d"])[: generator.integers(1, 5)])
    kinds = {
        str(name): (_SHAPES[generator.integers(len(_SHAPES))], str(generator.choice(dtypes)))
        for name in names
    }
    trees = [
        [{name: _values(generator, *kinds[name]) for name in kinds} for _ in range(passes)]
        for _ in range(size)
    ]
    if not weighs:
        return Step(trees, None, is_mean)
    weights = [[float(w) for w in generator.choice(_WEIGHTS, passes)] for _ in range(size)]
    weights[0][0] = 0.0
    weights[-1][-1] = 1.0  # of no weight at all there is no average
    for one, theirs in zip(weights, trees, strict=True):
        for weight, tree in zip(one, theirs, strict=True):
            for values in tree.values() if weight == 0.0 else ():
                values[...] = np.nan  # a mean over no samples
    return Step(trees, weights, is_mean)


def _values(generator: Any, shape: tuple[int, ...], dtype: str) -> Any:
    values = generator.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * generator.standard_normal(shape)
    return np.asarray(values, dtype)


def _of_one_process(step: Step) -> dict[str, Any]:
    """The mean over all samples, times the number of passes unless they are averaged."""
    pairs = [
        (1.0 if step.weights is None else step.weights[rank][number], tree)
        for rank, trees in enumerate(step.gradients)
        for number, tree in enumerate(trees)
    ]
    total = sum(weight for weight, _ in pairs)
    factor = 1 if step.is_mean else len(step.gradients[0])
    return {
        name: sum(
            weight * np.asarray(tree[name], complex if np.iscomplexobj(tree[name]) else float)
            for weight, tree in pairs
            if weight
        )
        * factor
        / total
        for name in step.gradients[0][0]
    }


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (gradients_of_random_trees_equal_one_process,)
