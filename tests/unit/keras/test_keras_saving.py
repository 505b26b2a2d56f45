"""Saved models: loaded by Horovod they go on, and they load where there is no Horovod."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_kinds import KINDS, Kind
from recording_ops import REDUCED, pretend_two_ranks

import horovod.keras as hvd
from horovod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("alone")


class Halving(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


def trained(optimizer: Any, of: Any = keras) -> Any:
    model = of.Sequential([of.Input((3,)), of.layers.Dense(2)])
    model.compile(optimizer, of.losses.MeanSquaredError())
    fit(model)
    return model


def fit(model: Any) -> None:
    model.fit(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32), verbose=0)


def state_of(model: Any) -> list[np.ndarray]:
    held = model.optimizer.variables
    variables = held() if callable(held) else held
    return [variable.numpy() for variable in [*model.weights, *variables]]


def assert_equal(mine: list[np.ndarray], theirs: list[np.ndarray], rtol: float = 0.0) -> None:
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol)


@pytest.mark.parametrize("ending", [".keras", ".h5", ""])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_load_model_keeps_class_config_and_state(tmp_path: Path, ending: str, kind: Kind) -> None:
    if kind.of is keras and not ending:
        pytest.skip("Keras 3 saves no folders")
    path = tmp_path / f"model{ending}"
    adam = kind.optimizers.Adam
    model = trained(hvd.DistributedOptimizer(adam(0.25, clipnorm=2.0)), kind.of)
    model.save(path)
    known: Any = {} if ending else {"custom_objects": {"Unused": adam}}
    loaded = hvd.load_model(path, **known)
    # Keras 3 builds no optimizer of an HDF5 file.
    plain = model if kind.of is keras else kind.of.models.load_model(path)
    assert (type(loaded.optimizer).__module__, type(loaded.optimizer).__name__) == (
        "horovod._keras",
        "Adam",
    )
    assert isinstance(loaded.optimizer, adam)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert_equal(state_of(loaded), state_of(plain))
    # Keras itself loads no state of optimizers from folders, and of legacy ones from .keras.
    if ending == ".h5" or (kind is not KINDS["legacy"] and ending):
        assert_equal(state_of(loaded), state_of(model))
    fit(plain)
    fit(loaded)
    assert_equal(state_of(loaded), state_of(plain), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_an_hdf5_file_without_the_state_of_the_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5, momentum=0.9))
    model = trained(hvd.DistributedOptimizer(scaler))
    model.save(path)
    with h5py.File(path, "a") as file:
        del file["optimizer_weights"]
    loaded = hvd.load_model(path)
    assert_equal(loaded.get_weights(), model.get_weights())
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    fit(loaded)
    assert int(loaded.optimizer.inner_optimizer.iterations) == 1


def test_a_loaded_optimizer_reduces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.keras"
    trained(keras.optimizers.SGD(1.0)).save(path)
    pretend_two_ranks(monkeypatch)
    loaded = hvd.load_model(path)
    bias = loaded.weights[1]
    before = bias.numpy().copy()
    loaded.optimizer.apply([tf.ones(2)], [bias])
    assert (before - bias.numpy()).tolist() == pytest.approx([REDUCED, REDUCED])
    assert loaded.jit_compile is False


@pytest.mark.parametrize("way", ["custom_optimizers", "custom_objects"])
def test_optimizers_that_keras_does_not_know(tmp_path: Path, way: str) -> None:
    path = tmp_path / "model.keras"
    model = trained(hvd.DistributedOptimizer(Halving(0.5)))
    model.save(path)
    known: Any = {"custom_optimizers": [Halving], "custom_objects": {"Halving": Halving}}[way]
    loaded = hvd.load_model(path, **{way: known})
    assert isinstance(loaded.optimizer, Halving)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert_equal(state_of(loaded), state_of(model))


def test_a_loss_scale_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=4.0)
    trained(hvd.DistributedOptimizer(scaler)).save(path)
    loaded = hvd.load_model(path)
    assert type(loaded.optimizer).__name__ == "LossScaleOptimizer"
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert type(loaded.optimizer.inner_optimizer) is keras.optimizers.SGD


def test_a_model_without_optimizer_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    assert not hvd.load_model(path).compiled


def test_there_are_no_legacy_optimizers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no legacy optimizers"):
        hvd.load_model(tmp_path / "model.keras", legacy_opts=True)


WITHOUT_HOROVOD = """
import importlib
import sys
import numpy as np

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ImportError("there is no horovod")

sys.meta_path.insert(0, Blocker())
_, path, name, optimizers = sys.argv
keras = importlib.import_module(name)
model = keras.models.load_model(path)
assert type(model.optimizer) is importlib.import_module(optimizers).Adam, type(model.optimizer)
print([v.numpy().ravel().tolist() for v in model.weights])
if name == "keras":
    print([v.numpy().ravel().tolist() for v in model.optimizer.variables])
model.fit(np.ones((4, 3)), np.zeros((4, 2)), verbose=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_saved_model_loads_without_horovod(tmp_path: Path, kind: Kind) -> None:
    model = trained(hvd.DistributedOptimizer(kind.optimizers.Adam(0.25)), kind.of)
    path = str(tmp_path / "model.keras")
    model.save(path)
    names = (kind.of.__name__, kind.optimizers.__name__)
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOROVOD, path, *names],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    found = [value for line in ended.stdout.splitlines() for value in json.loads(line)]
    assert found == [value.ravel().tolist() for value in state_of(model)][: len(found)]
    assert len(found) >= len(model.weights)
