"""Smaller gradients on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.compression import Compressor, NoneCompressor
from horovod.mxnet.tensors import dtype_name

if TYPE_CHECKING:
    import mxnet as mx

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16; others stay as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Returns the array in float16 and its dtype."""
        if "float" not in dtype_name(tensor):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Returns the array in the dtype ``ctx``."""
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """The compressions to choose from; any :class:`Compressor` will do."""

    none = NoneCompressor
    """No compression."""

    fp16 = FP16Compressor
    """float16 on the wire: range up to 65504, 11 bits of precision."""
