"""TensorFlow's collectives of a rank that is told it is one of two, without the other one."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from horovod.tensorflow import gradient_reducer

if TYPE_CHECKING:
    import pytest

    from horovod._rank.reduction import Reduction
    from horovod.tensorflow.calls import CollectiveCall

REDUCED = 10.0
"""What stands for the reduction: all values are multiplied by it."""


class Reduced(NamedTuple):
    """What one operation was asked."""

    call: CollectiveCall
    reduction: Reduction
    compression: Any
    device_dense: str
    device_sparse: str


class RecordingOps:
    """Multiplies instead of reducing, and keeps what it was asked when graphs were traced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.calls: list[Reduced] = []
        self.groups: list[int] = []
        self.callers: set[str] = set()

    def reduce_tensor(self, call: CollectiveCall, tensor: Any, *how: Any) -> Any:
        return self.reduce_tensors(call, [tensor], *how)[0]

    def reduce_tensors(self, call: CollectiveCall, tensors: list[Any], *how: Any) -> list[Any]:
        scope = "" if call.ignore_name_scope else _current_scope()
        assert call.name is not None
        self.names.append(scope + call.name)
        self.calls.append(Reduced(call, *how))
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


class _Pair:
    """What gradients need to know of a group."""

    size = 2


def pretend_two_ranks(monkeypatch: pytest.MonkeyPatch, included: bool = True) -> RecordingOps:
    """Makes gradients travel through the returned recorder."""
    recorder = RecordingOps()
    group = _Pair()
    monkeypatch.setattr(gradient_reducer, "reductions", recorder)
    monkeypatch.setattr(gradient_reducer, "group_of", lambda _: group)
    monkeypatch.setattr(gradient_reducer, "num_members_op", lambda _: tf.constant(group.size))
    monkeypatch.setattr(
        gradient_reducer._numbers, "number_for", lambda names, _: _next_number(recorder, names)
    )
    monkeypatch.setattr(gradient_reducer.global_process_set, "included", lambda: included)
    gradient_reducer._function.cache_clear()
    return recorder


def _next_number(recorder: RecordingOps, names: list[str]) -> int:
    taken = {name.partition(".")[0] for name in recorder.names}
    return 1 + sum(any(t.startswith(name) for name in names) for t in taken)
