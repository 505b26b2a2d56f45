"""The base of callbacks, which work in ``model.fit`` of both generations of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.group import ReduceOp


class CallbackOfAnyKeras:
    """The methods that Keras 2 needs from a callback, for callbacks made from one of Keras 3."""

    def _implements_train_batch_hooks(self) -> bool:
        return self._overrides("batch_begin", "batch_end", "train_batch_begin", "train_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self._overrides("test_batch_begin", "test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._overrides("predict_batch_begin", "predict_batch_end")

    def _overrides(self, *hooks: str) -> bool:
        methods: list[Any] = [getattr(self, f"on_{hook}") for hook in hooks]
        return not all(getattr(method, "_is_default", False) for method in methods)


class TrainingCallback(CallbackOfAnyKeras, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """A callback of ``tf.keras`` that does not care which Keras the model comes from."""


def all_ranks(mine: bool, name: str) -> bool:
    """Whether something is true on all ranks; collective."""
    answer = np.array([mine])
    view = Buffer.from_array(answer)
    context.global_group().allreduce(
        (view,), (view,), op=ReduceOp.MIN, name=name, waits_next=True
    ).wait()
    return bool(answer[0])
