"""SyncBatchNormalization as a layer of Keras; what it does over ranks is in tests/dist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import horovod.tensorflow as hvd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


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
