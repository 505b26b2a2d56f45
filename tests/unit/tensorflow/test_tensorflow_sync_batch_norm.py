"""SyncBatchNormalization as a layer of Keras; what it does over ranks is in tests/dist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.sync_batch_norm import _local_moments

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("fused", [True, None])
def test_fused_kernels_are_refused(fused: Any) -> None:
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=fused)


def test_it_is_a_batch_normalization() -> None:
    keras.backend.clear_session()
    layer = hvd.SyncBatchNormalization(axis=1, momentum=0.5)
    assert isinstance(layer, keras.layers.BatchNormalization)
    assert layer.name == "sync_batch_normalization"
    assert (layer.axis, layer.momentum) == (1, 0.5)
    x = np.random.default_rng(1).normal(size=(4, 3, 2)).astype("float32")
    plain = keras.layers.BatchNormalization(axis=1, momentum=0.5)
    for training in (True, False):
        np.testing.assert_array_equal(layer(x, training=training), plain(x, training=training))
    for mine, other in zip(layer.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_models_that_hold_it_can_be_saved(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), hvd.SyncBatchNormalization(momentum=0.5)])
    model(np.ones((2, 3)), training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is hvd.SyncBatchNormalization
    for mine, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert type(keras.models.clone_model(model).layers[0]) is hvd.SyncBatchNormalization


def test_keras_does_not_compile_it_with_xla() -> None:
    model = keras.Sequential([keras.Input((3,)), hvd.SyncBatchNormalization()])
    model.compile("sgd", "mse")
    assert model.jit_compile is False


def test_what_a_mask_leaves_out_may_be_no_number() -> None:
    x = tf.constant([[1.0], [float("nan")], [3.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        moments = _local_moments(x, tf.constant([True, False, True]), [0])
        total = tf.add_n(moments)
    assert [each.numpy().tolist() for each in moments] == [[2.0], [2.0], [1.0]]
    assert tape.gradient(total, x).numpy().tolist() == [[-0.5], [0.0], [1.5]]
