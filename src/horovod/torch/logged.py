"""Tensors of PyTorch as values of ``hvd.log``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod._train.logged.call import accept_values, check_one_element, log
from horovod.errors import UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import read_later

if TYPE_CHECKING:
    from collections.abc import Callable


def take(name: str, value: Any) -> float | Callable[[], float] | None:
    """Return the number in a tensor, or what waits for its device; None for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    check_one_element(name, value.numel(), value.shape)
    if value.is_complex():
        raise UsageError(f"hvd.log: {name} is complex: log its real part, or its magnitude")
    if value.is_meta:
        raise UsageError(f"hvd.log: {name} is a tensor on the meta device, which has no values")
    values = value.detach()
    return read_later(values) if values.is_cuda else values.item()


accept_values(take)
outside_of_graphs(log)
