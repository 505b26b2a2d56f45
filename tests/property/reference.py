"""What a reduction must give, by NumPy, and how far rounding may take an engine from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from arrays import EPSILON, FLOATS, HALVES, INTEGERS, LEAST, Array, widen

from horovod._rank.reduction import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMBINE = {
    ReduceOp.AVERAGE: np.add,
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}
# Of a vector whose squared norm is smaller, Adasum makes no direction.
_LEAST_SQUARE = float(np.sqrt(np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class Reduction:
    """How the values of several ranks become one; see :class:`horovod._rank.group.Group`.

    Attributes:
        op: the reduction.
        prescale, postscale: factors of the inputs and of the result.
        num_averaged: what Average divides by.
        weights: of the ranks whose values there are, or None.
    """

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    num_averaged: int = 1
    weights: tuple[float, ...] | None = None


def reduce(dtype: str, inputs: Sequence[Array], how: Reduction) -> tuple[Array, Array | None]:
    """Reduces the bits of some ranks; returns widened values, and the bound or None for exact."""
    shape = inputs[0].shape
    flat = [widen(bits, dtype).ravel() for bits in inputs]
    with np.errstate(all="ignore"):
        if dtype in INTEGERS:
            return _reduce_integers(dtype, flat, how).reshape(shape), None
        if dtype == "bool":
            both = how.op in (ReduceOp.MIN, ReduceOp.PRODUCT)
            ufunc = np.logical_and if both else np.logical_or
            return ufunc.reduce(flat).reshape(shape), None
        reduce_floats = _adasum if how.op is ReduceOp.ADASUM else _reduce_floats
        expected, bound = reduce_floats(dtype, [x.astype(np.float64) for x in flat], how)
    return expected.reshape(shape), bound.reshape(shape)


def _factor(how: Reduction, whole: bool = False) -> float:
    divides = how.op is ReduceOp.AVERAGE and how.weights is None
    divisor = how.num_averaged if divides else 1
    quotient = how.postscale / divisor
    # Truncation must not lose what is a whole number in truth.
    if whole and abs(Fraction(quotient) * divisor) < abs(Fraction(how.postscale)):
        return math.nextafter(quotient, math.copysign(math.inf, how.postscale))
    return quotient


def _scale_integers(values: Array, factor: float) -> Array:
    """Multiplies in float64, truncates toward zero, and stays within the type."""
    if factor == 1.0:
        return values
    info = np.iinfo(values.dtype)
    whole = np.trunc(values.astype(np.float64) * factor)
    inside = (whole > float(info.min)) & (whole < float(info.max))
    ends = np.where(whole <= float(info.min), info.min, info.max).astype(values.dtype)
    return np.where(inside, np.where(inside, whole, 0.0).astype(values.dtype), ends)


def _reduce_integers(dtype: str, inputs: list[Array], how: Reduction) -> Array:
    scaled = [_scale_integers(values, how.prescale) for values in inputs]
    if how.op is ReduceOp.AVERAGE and how.num_averaged > 1:
        return _average_integers(dtype, scaled, how)
    # Integers wrap around, so that the order does not matter.
    return _scale_integers(_COMBINE[how.op].reduce(scaled, dtype=dtype), _factor(how, whole=True))


def _average_integers(dtype: str, inputs: list[Array], how: Reduction) -> Array:
    """Python's integers hold every sum; a factor is applied in float64."""
    info = np.iinfo(dtype)

    def average(total: int) -> int:
        if how.postscale == 1.0:
            quotient = abs(total) // how.num_averaged
            return quotient if total >= 0 else -quotient
        return int(min(max(math.trunc(total * _factor(how, whole=True)), info.min), info.max))

    totals = [sum(int(value) for value in values) for values in zip(*inputs, strict=True)]
    return np.array([average(total) for total in totals], dtype)


def _reduce_floats(dtype: str, inputs: list[Array], how: Reduction) -> tuple[Array, Array]:
    factor = _factor(how)
    terms = [values * how.prescale for values in inputs]
    if how.weights is not None:
        # What has no weight contributes nothing, also if it is no number.
        total = sum(how.weights)
        weighed = zip(terms, how.weights, strict=True)
        terms = [term * (w / total) for term, w in weighed if w > 0.0]
    expected = _COMBINE[how.op].reduce(terms) * factor
    adds = how.op in (ReduceOp.SUM, ReduceOp.AVERAGE)
    magnitude = np.add.reduce(np.abs(terms)) * abs(factor) if adds else np.abs(expected)
    # Half types are combined in float32, and rounded when they are scaled and when they are stored.
    wide = EPSILON["float32" if dtype in HALVES else dtype]
    num_scalings = int(how.prescale != 1.0) + 2 * int(how.weights is not None)
    if not adds:
        num_scalings *= len(inputs)
    bound = magnitude * (wide * (len(inputs) + 4) + EPSILON[dtype] * num_scalings)
    exact = dtype in FLOATS and not adds and how.op is not ReduceOp.PRODUCT
    if exact and how.prescale == 1.0 and factor == 1.0:
        return expected, np.zeros_like(bound)
    return expected, bound + EPSILON[dtype] * np.abs(expected) + LEAST[dtype]


def _adasum_of_two(a: Array, b: Array) -> Array:
    dot, square_a, square_b = np.dot(a, b), np.dot(a, a), np.dot(b, b)
    share_a = 1.0 if square_a < _LEAST_SQUARE else 1.0 - dot / (2.0 * square_a)
    share_b = 1.0 if square_b < _LEAST_SQUARE else 1.0 - dot / (2.0 * square_b)
    return share_a * a + share_b * b


def _adasum(dtype: str, inputs: list[Array], how: Reduction) -> tuple[Array, Array]:
    """The tree over the ranks; those beyond a power of two first join their partners."""
    values = [x * how.prescale for x in inputs]
    power = 1 << (len(values).bit_length() - 1)
    for extra in range(power, len(values)):
        values[extra - power] = _adasum_of_two(values[extra - power], values[extra])
    values = values[:power]
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [_adasum_of_two(a, b) for a, b in pairs]
    expected = values[0] * how.postscale
    wide = EPSILON["float32" if dtype in HALVES else dtype]
    size = sum(float(np.linalg.norm(x)) for x in inputs) * abs(how.prescale * how.postscale)
    bound = EPSILON[dtype] * np.abs(expected) + 32 * wide * size + LEAST[dtype]
    return expected, bound
