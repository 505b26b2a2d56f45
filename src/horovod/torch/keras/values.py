"""Collectives on values with Keras on PyTorch; see :class:`horovod._keras.values.Values`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from horovod._keras.values import Values
from horovod.torch import ops

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def _tensor_of(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))


_values = Values(ops, _tensor_of)
allreduce = _values.allreduce
allgather = _values.allgather
broadcast = _values.broadcast
reducescatter = _values.reducescatter
