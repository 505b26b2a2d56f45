"""What an allreduce does with the values of several ranks, for all frameworks."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Buffer


class ReduceOp(IntEnum):
    """The reduction of values of several ranks. The numbers are those of Horovod."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class QuantizedFormat(IntEnum):
    """How values travel between hosts in 8 bits, with a scale for each 256 values."""

    INT8 = 1
    FP8_E4M3 = 2
    FP8_E5M2 = 3
    AUTO = 4
    """INT8 where the engine expects much of it, and what cannot be quantized as it is."""


class Quantized(NamedTuple):
    """How an allreduce by Sum or Average sends values of floating point from host to host.

    Attributes:
        format: of the values.
        residuals: none, or one for each input: float32 values of as many elements, contiguous, on
            the CPU. They are added to what this rank gives, prescaled, and are left with what did
            not reach the result, over all ranks together. Keep them alive with the inputs.
    """

    format: QuantizedFormat
    residuals: Sequence[Buffer] = ()


class Reduction(NamedTuple):
    """How the values of several ranks become one.

    Attributes:
        op: the reduction; Average divides the sum by the set size, that of integers exactly.
        prescale, postscale: factors applied before and after the reduction, rounded to the
            dtype; half types are multiplied in float32, integers in float64 and truncated.
        weight: of this rank in the average, for example its number of samples; may differ
            between ranks. Values of weight 0 do not count, also if they are infinite or NaN;
            0 on all ranks is an error. None if all ranks count alike.
        priority: operations with a higher number overtake others.
        quantized: how values travel between hosts; None for their own dtype.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0
    weight: float | None = None
    priority: int = 0
    quantized: Quantized | None = None


PLAIN_AVERAGE = Reduction()
PLAIN_SUM = Reduction(ReduceOp.SUM)
