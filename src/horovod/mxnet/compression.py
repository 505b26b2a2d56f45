"""Smaller gradients on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.compression import (
    CastCompressor,
    Compressor,
    FP8Compressor,
    FP8E5M2Compressor,
    Int8Compressor,
    NoneCompressor,
)
from horovod.mxnet.tensors import dtype_name

if TYPE_CHECKING:
    import mxnet as mx

__all__ = [
    "Compression",
    "Compressor",
    "FP8Compressor",
    "FP8E5M2Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
]


class FP16Compressor(CastCompressor):
    """Sends floating-point arrays as float16; others stay as they are."""

    sent_dtype = "float16"

    @staticmethod
    def is_float(tensor: mx.nd.NDArray) -> bool:
        """Whether the array has a floating-point dtype."""
        return "float" in dtype_name(tensor)

    @staticmethod
    def cast(tensor: mx.nd.NDArray, dtype: Any) -> mx.nd.NDArray:
        """Returns the array in another dtype, or itself if it has that."""
        return tensor.astype(dtype, copy=False)


class Compression:
    """The compressions to choose from; any :class:`Compressor` will do."""

    none = NoneCompressor
    """No compression."""

    fp16 = FP16Compressor
    """float16 on the wire: range up to 65504, 11 bits of precision."""

    int8 = Int8Compressor
    """8 bits between hosts, in equal steps; what is rounded off is lost."""

    fp8 = FP8Compressor
    """8 bits between hosts, float8_e4m3: 4 bits of precision for large and small values alike."""

    fp8_e5m2 = FP8E5M2Compressor
    """8 bits between hosts, float8_e5m2: more range in a block than fp8, 3 bits of precision."""
