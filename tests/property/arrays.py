"""Arrays of every dtype: what is in them, where they lie in memory, and how they are compared.

An array of bfloat16, which NumPy does not have, is one of uint16 that holds its bits.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._native import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import NativeArray

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
DTYPES = ("bool", *INTEGERS, *FLOATS)

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance from 1 to the next number."""
LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
"""The least positive number."""

Array = np.ndarray[Any, Any]

_GUARD_BYTES = 16
_GUARD = 0xA5


def carrier(dtype: str) -> np.dtype[Any]:
    """The dtype of the NumPy array that holds ``dtype``."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def widen(bits: Array, dtype: str) -> Array:
    """The values: float32 of half types, all others as they are."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32) if dtype == "float16" else bits


def narrow(values: Array, dtype: str) -> Array:
    """Rounds values to an array that holds ``dtype``."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return values.astype(carrier(dtype))
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def make_values(dtype: str, shape: Sequence[int], flavour: str, seed: Sequence[int]) -> Array:
    """Makes an array that depends on nothing but the arguments.

    Args:
        dtype: what it holds.
        shape: any.
        flavour: "small" whole numbers; "any" number of an integer type, or real numbers between
            2⁻⁴ and 1.5 in magnitude; "special": infinities, NaNs and zeros among them, or the ends
            of an integer type.
        seed: what else makes it differ.
    """
    generator = np.random.default_rng((*seed, *shape))
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if flavour == "small":
        least = 0 if dtype.startswith("uint") else -4
        return narrow(generator.integers(least, 5, shape).astype(np.float32), dtype)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        values = generator.integers(info.min, info.max, shape, dtype, endpoint=True)
        if flavour == "special":
            values = generator.choice(np.array([info.min, info.max, 0, 1], dtype), shape)
        return np.asarray(values, dtype)
    real = generator.uniform(2.0**-4, 1.5, shape) * generator.choice((-1.0, 1.0), shape)
    if flavour == "special":
        special = generator.choice((np.inf, -np.inf, np.nan, 0.0, -0.0), shape)
        real = np.where(generator.random(shape) < 0.2, special, real)
    return narrow(np.asarray(real), dtype)


class Placed:
    """An array at any address, between bytes that nobody may touch.

    Args:
        bits: what it holds at first.
        dtype: of the engine's view.
        offset: bytes by which it misses a round address.
    """

    def __init__(self, bits: Array, dtype: str, offset: int) -> None:
        self._memory = np.full(bits.nbytes + 2 * _GUARD_BYTES + offset, _GUARD, np.uint8)
        self._span = slice(_GUARD_BYTES + offset, _GUARD_BYTES + offset + bits.nbytes)
        inner = self._memory[self._span]
        self.bits: Array = np.ndarray(bits.shape, bits.dtype, inner.data)
        self.bits[...] = bits
        address = self._memory.ctypes.data + self._span.start
        self.buffer = Buffer(address, dtype, bits.shape)

    def check_guards(self) -> None:
        """Fails if something was written beside the array."""
        around = np.delete(self._memory, self._span)
        assert (around == _GUARD).all(), "the engine wrote beside its output"


def copy_of(result: NativeArray) -> Array:
    """The bits of an array that the engine allocated."""
    dtype = carrier(result.dtype)
    num_bytes = int(np.prod(result.shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_char * num_bytes).from_address(result.address) if num_bytes else b""
    return np.frombuffer(memory, dtype).reshape(result.shape).copy()


def check_equal(got: Array, expected: Array, bound: Array | None, what: str) -> None:
    """Compares values: all bits of them if there is no bound.

    Args:
        got, expected: widened values of one shape; NaNs and infinities must be at the same places.
        bound: how far a value may be from what is expected.
        what: for the message.
    """
    assert got.shape == expected.shape, f"{what}: {got.shape} instead of {expected.shape}"
    if bound is None:
        wrong = got != expected
        if np.issubdtype(got.dtype, np.floating):
            wrong &= ~(np.isnan(got) & np.isnan(expected))
    else:
        exact = ~np.isfinite(expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        with np.errstate(invalid="ignore"):
            far = ~(np.abs(got.astype(np.float64) - expected) <= bound)
        wrong = np.where(exact, ~same, far)
    if not wrong.any():
        return
    at = tuple(int(index) for index in np.argwhere(wrong)[0])
    allowed = "" if bound is None else f" ± {np.broadcast_to(bound, got.shape)[at]}"
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.size} elements are wrong; at {list(at)} is "
        f"{got[at]!s} instead of {expected[at]!s}{allowed}"
    )
