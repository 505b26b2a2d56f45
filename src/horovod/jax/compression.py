"""Smaller gradients on the wire; casts, which XLA joins with what is around."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from horovod._train.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @staticmethod
    def is_float(tensor: jax.Array) -> bool:
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating))

    @staticmethod
    def cast(tensor: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        return tensor.astype(dtype)


class FP16Compressor(_Cast):
    """Sends floating-point arrays as float16; others stay as they are."""

    sent_dtype = jnp.float16


class BF16Compressor(_Cast):
    """Sends floating-point arrays as bfloat16; others stay as they are."""

    sent_dtype = jnp.bfloat16


class Compression:
    """The compressions to choose from; any :class:`Compressor` of traceable methods will do."""

    none = NoneCompressor
    """No compression."""

    fp16 = FP16Compressor
    """float16 on the wire: range up to 65504, 11 bits of precision."""

    bf16 = BF16Compressor
    """bfloat16 on the wire: the range of float32, 8 bits of precision."""
