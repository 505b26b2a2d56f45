"""Smaller gradients on the wire; casts, which XLA joins with what is around."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod._train.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _cast(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        return tensor, None
    return tensor.astype(dtype), tensor.dtype


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16; others stay as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the array in float16 and its dtype."""
        return _cast(tensor, jnp.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the array in the dtype ``ctx``."""
        return tensor if ctx is None else tensor.astype(ctx)


class BF16Compressor(Compressor):
    """Sends floating-point arrays as bfloat16; others stay as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the array in bfloat16 and its dtype."""
        return _cast(tensor, jnp.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the array in the dtype ``ctx``."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressions to choose from; any :class:`Compressor` of traceable methods will do."""

    none = NoneCompressor
    """No compression."""

    fp16 = FP16Compressor
    """float16 on the wire: range up to 65504, 11 bits of precision."""

    bf16 = BF16Compressor
    """bfloat16 on the wire: the range of float32, 8 bits of precision."""
