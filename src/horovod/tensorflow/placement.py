"""The placement of operations that a script wants on a device."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def placed(device: Any) -> AbstractContextManager[Any]:
    """``tf.device(device)``; a GPU is taken as a hint, which is passed over.

    The operations have kernels for the CPU only, so a session that must place them on a GPU, and
    any program on a host without one, would fail over an argument that changes no result.

    Args:
        device: what ``tf.device`` takes; empty leaves the place to TensorFlow.
    """
    if isinstance(device, str) and "gpu" in device.lower():
        return contextlib.nullcontext()
    place: AbstractContextManager[Any] = tf.device(device)
    return place
