"""Smaller gradients on the wire."""

from __future__ import annotations

import torch

from horovod._train.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


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
