"""The base of callbacks, which work in ``model.fit`` of both generations of Keras."""

from __future__ import annotations

from typing import Any, TypeAlias

from horovod._keras.seam import Seam, seam_of
from horovod._keras.which import keras_in_use, keras_of, keras_of_callbacks
from horovod._rank import context
from horovod._train.objects import all_agree

Logs: TypeAlias = "dict[str, float]"  # which callbacks may change

_callbacks: Any = keras_of_callbacks().callbacks


class CallbackOfAnyKeras:
    """The methods that Keras 2 needs from a callback, for callbacks made from one of Keras 3."""

    model: Any

    def _implements_train_batch_hooks(self) -> bool:
        return self._overrides("batch_begin", "batch_end", "train_batch_begin", "train_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self._overrides("test_batch_begin", "test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._overrides("predict_batch_begin", "predict_batch_end")

    def _overrides(self, *hooks: str) -> bool:
        methods: list[Any] = [getattr(self, f"on_{hook}") for hook in hooks]
        return not all(getattr(method, "_is_default", False) for method in methods)


class TrainingCallback(CallbackOfAnyKeras, _callbacks.Callback):  # type: ignore[misc]
    """A callback that does not care which Keras the model comes from."""

    @property
    def _seam(self) -> Seam:
        """The functions of the backend of the model."""
        return seam_of(keras_of(type(self.model)) or keras_in_use())


class ModelCheckpoint(CallbackOfAnyKeras, _callbacks.ModelCheckpoint):  # type: ignore[misc]
    """The ModelCheckpoint of Keras, for a model of any Keras."""


def all_ranks(mine: bool, name: str) -> bool:
    """Whether something is true on all ranks; collective."""
    return all_agree(context.global_group(), mine, name)
