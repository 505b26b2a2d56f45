"""What a user of TensorFlow with GPUs is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf
from told import told

from horovod.tensorflow.native_ops import tell_of_gpus


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, "1 GPU,"), (2, "2 GPUs,")])
def test_copies_of_tensors_on_gpus_are_told_once(
    count: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [SimpleNamespace(name=str(index)) for index in range(count)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices)
    tell_of_gpus.cache_clear()
    with told(*[f"{text}.*host memory"] * (count > 0)):
        tell_of_gpus()
        tell_of_gpus()
    tell_of_gpus.cache_clear()
