"""What a user of TensorFlow with GPUs is told."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import tensorflow as tf

from horovod.tensorflow.native_ops import tell_of_gpus


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, "1 GPU,"), (2, "2 GPUs,")])
def test_copies_of_tensors_on_gpus_are_told_once(
    count: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [SimpleNamespace(name=str(index)) for index in range(count)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices)
    tell_of_gpus.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tell_of_gpus()
        tell_of_gpus()
    tell_of_gpus.cache_clear()
    said = [str(each.message) for each in caught]
    assert len(said) == (count > 0)
    assert all(text in line and "host memory" in line for line in said)
