"""Smaller gradients on the wire."""

from __future__ import annotations

import tensorflow as tf

from horovod._train.compression import (
    AutoCompressor,
    CastCompressor,
    Compressor,
    FP8Compressor,
    FP8E5M2Compressor,
    Int8Compressor,
    NoneCompressor,
)

__all__ = [
    "AutoCompressor",
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP8Compressor",
    "FP8E5M2Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
]


class _Cast(CastCompressor):
    @staticmethod
    def is_float(tensor: tf.Tensor) -> bool:
        return bool(tensor.dtype.is_floating)

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Sends floating-point tensors as float16; others stay as they are."""

    sent_dtype = tf.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors as bfloat16; others stay as they are."""

    sent_dtype = tf.bfloat16


class Compression:
    """The compressions to choose from; any :class:`Compressor` will do."""

    none = NoneCompressor
    """No compression."""

    fp16 = FP16Compressor
    """float16 on the wire: range up to 65504, 11 bits of precision."""

    bf16 = BF16Compressor
    """bfloat16 on the wire: the range of float32, 8 bits of precision."""

    int8 = Int8Compressor
    """8 bits between hosts, in equal steps; a DistributedOptimizer makes up for the rounding."""

    fp8 = FP8Compressor
    """8 bits between hosts, float8_e4m3: 4 bits of precision for large and small values alike."""

    fp8_e5m2 = FP8E5M2Compressor
    """8 bits between hosts, float8_e5m2: more range in a block than fp8, 3 bits of precision."""

    auto = AutoCompressor
    """int8 where the links between the hosts are slow enough to gain much by it, otherwise none."""
