"""TensorFlow's collectives of a rank that is told it is one of two, without the other one."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod.tensorflow import gradient_reduction

if TYPE_CHECKING:
    import pytest

REDUCED = 10.0
"""What stands for the reduction: all values are multiplied by it."""


class RecordingOps:
    """Multiplies instead of reducing, and keeps what it was asked when graphs were traced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.groups: list[int] = []
        self.callers: set[str] = set()

    def allreduce(self, tensor: Any, **options: Any) -> Any:
        return self._reduce([tensor], options)[0]

    def grouped_allreduce(self, tensors: list[Any], **options: Any) -> list[Any]:
        return self._reduce(tensors, options)

    def _reduce(self, tensors: list[Any], options: dict[str, Any]) -> list[Any]:
        scope = "" if options["ignore_name_scope"] else _current_scope()
        self.names.append(scope + options["name"])
        self.calls.append(options)
        self.groups.append(len(tensors))
        self.callers |= {frame.name for frame in traceback.extract_stack()}
        return [_multiplied(tensor) for tensor in tensors]


def _current_scope() -> str:
    scope = tf.get_current_name_scope()
    return f"{scope}/" if scope else ""


def _multiplied(tensor: Any) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tensor.values * REDUCED, tensor.indices, tensor.dense_shape)
    return tensor * REDUCED


def pretend_two_ranks(monkeypatch: pytest.MonkeyPatch, included: bool = True) -> RecordingOps:
    """Makes gradients travel through the returned recorder."""
    recorder = RecordingOps()
    group = SimpleNamespace(size=2)
    monkeypatch.setattr(gradient_reduction, "ops", recorder)
    monkeypatch.setattr(gradient_reduction, "group_of", lambda _: group)
    monkeypatch.setattr(
        gradient_reduction._numbers, "number_for", lambda names, _: _next_number(recorder, names)
    )
    monkeypatch.setattr(gradient_reduction.global_process_set, "included", lambda: included)
    gradient_reduction._function.cache_clear()
    return recorder


def _next_number(recorder: RecordingOps, names: list[str]) -> int:
    taken = {name.partition(".")[0] for name in recorder.names}
    return 1 + sum(any(t.startswith(name) for name in names) for t in taken)
