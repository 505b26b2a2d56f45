"""Collectives on values with Keras on JAX; see :class:`horovod._keras.values.Values`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from horovod._keras.values import Values
from horovod.jax import ops

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def _array_of(value: Any) -> Any:
    return value if isinstance(value, jax.Array | int | float) else np.asarray(value)


_values = Values(ops, _array_of)
allreduce = _values.allreduce
allgather = _values.allgather
broadcast = _values.broadcast
reducescatter = _values.reducescatter
