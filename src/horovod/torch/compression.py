"""Smaller gradients on the wire."""

from __future__ import annotations

import torch

from horovod._train.compression import (
    AutoCompressor,
    CastCompressor,
    Compressor,
    FP8Compressor,
    FP8E5M2Compressor,
    Int8Compressor,
    NoneCompressor,
)
from horovod.torch.powersgd import PowerSGDCompressor

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
    "PowerSGDCompressor",
]


class _Cast(CastCompressor):
    @staticmethod
    def is_float(tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point()

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Sends floating-point tensors as float16; others stay as they are."""

    sent_dtype = torch.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors as bfloat16; others stay as they are."""

    sent_dtype = torch.bfloat16


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

    @staticmethod
    def powersgd(rank: int = 2, *, least_ratio: float = 2.0) -> PowerSGDCompressor:
        """Return PowerSGD, for DistributedOptimizer: gradients travel as matrices of low rank.

        See docs/compression.md. Vectors travel as they are.

        Args:
            rank: the columns of both matrices; more is more precise, and more bytes.
            least_ratio: what would not take that many times fewer bytes travels as it is.

        Raises:
            UsageError: an argument is out of range.
        """
        return PowerSGDCompressor(rank, least_ratio)

    auto = AutoCompressor
    """int8 where the links between the hosts are slow enough to gain much by it, otherwise none."""
