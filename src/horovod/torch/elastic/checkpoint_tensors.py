"""Tensors in the files of commits."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from horovod._train.elastic.checkpoint.data import Codec, NoDataError, check_size, register


def _fits(value: Any) -> bool:
    is_tensor = type(value) in (torch.Tensor, torch.nn.Parameter)
    return is_tensor and value.layout == torch.strided and not value.is_quantized


def _pack(tensor: torch.Tensor) -> tuple[Any, Any]:
    if tensor.is_cuda:  # the copy that a commit has begun on another stream
        torch.cuda.synchronize(tensor.device)
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    buffer: Any = (ctypes.c_char * (host.numel() * host.element_size())).from_address(
        host.data_ptr()
    )
    buffer.tensor = host  # lives as long as its memory is looked at
    name = str(host.dtype).removeprefix("torch.")
    return [name, list(host.shape), tensor.device.type, tensor.requires_grad], buffer


def _unpack(description: Any, buffer: bytearray) -> torch.Tensor:
    name, shape, device, requires_grad = description
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise NoDataError(f"a tensor of {name}, which this PyTorch does not know")
    check_size(shape, torch.empty((), dtype=dtype).element_size(), buffer)
    tensor = torch.empty(shape, dtype=dtype)
    if buffer:
        tensor = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).reshape(shape)
    if device == "cuda" and torch.cuda.is_available():
        tensor = tensor.to(device)
    return tensor.requires_grad_(requires_grad)


register("torch", Codec(_fits, _pack, _unpack))
