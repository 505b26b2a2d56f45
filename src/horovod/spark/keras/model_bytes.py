"""Models and optimizers of Keras as bytes, and the files of checkpoints."""

from __future__ import annotations

import json
import tempfile
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import keras

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

_STATE = "horovod.json"  # a further file in a .keras archive, a data set of an HDF5 file


def model_bytes(model: keras.Model) -> bytes:
    """A model in the format ``.keras``; the model stays as it is."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Of functions in its compile() that cannot be loaded by name: they travel apart from it.
        warnings.simplefilter("ignore")
        path = Path(folder, "model.keras")
        model.save(path)
        return path.read_bytes()


def model_of(data: bytes, custom_objects: Mapping[str, object] | None, compiled: bool) -> Any:
    """The model of some bytes.

    Args:
        data: of :func:`model_bytes`.
        custom_objects: classes and functions that Keras does not know.
        compiled: whether it is to be compiled, if all that its ``compile`` was given can be loaded.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        path.write_bytes(data)
        options = {"custom_objects": dict(custom_objects or {}), "safe_mode": False}
        if compiled:
            try:
                return keras.models.load_model(path, compile=True, **options)
            except (TypeError, ValueError):
                pass
        return keras.models.load_model(path, compile=False, **options)


@dataclass(frozen=True)
class OptimizerRecord:
    """An optimizer apart from a model.

    Attributes:
        config: its class and options, the learning rate for one rank among them.
        values: of its variables; empty if it has not been built.
    """

    config: dict[str, Any]
    values: Sequence[np.ndarray]

    @classmethod
    def of(cls, optimizer: keras.optimizers.Optimizer) -> OptimizerRecord:
        """Record an optimizer, or its name."""
        optimizer = keras.optimizers.get(optimizer)
        values = [variable.numpy() for variable in optimizer.variables] if optimizer.built else []
        return cls(keras.optimizers.serialize(optimizer), values)

    def described(self) -> dict[str, Any]:
        """Return its class and options, see :mod:`horovod.spark.common.description`."""
        return self.config

    def made(self, custom_objects: Mapping[str, object] | None) -> Any:
        """A new optimizer like it, not built."""
        return keras.optimizers.deserialize(self.config, custom_objects=dict(custom_objects or {}))

    def restore(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[object]) -> None:
        """Builds an optimizer of :meth:`made` for some variables, and gives it its state.

        Raises:
            UsageError: the state is that of another model.
        """
        optimizer.build(variables)
        if not self.values:
            return
        shapes = [tuple(variable.shape) for variable in optimizer.variables]
        if shapes != [value.shape for value in self.values]:
            raise UsageError("the optimizer has state of another model: give a new optimizer")
        for variable, value in zip(optimizer.variables, self.values, strict=True):
            variable.assign(value)


def described_model(model: keras.Model) -> list[Any]:
    """Return what a model consists of: classes, options and shapes, but no names.

    Keras counts the names of layers in each process.
    """
    weights = [f"{weight.dtype} {tuple(weight.shape)}" for weight in model.weights]
    return [type(model), [_described_layer(layer) for layer in model.layers], weights]


def _described_layer(layer: Any) -> Any:
    if getattr(layer, "layers", None):
        return [type(layer), [_described_layer(each) for each in layer.layers]]
    try:
        config = layer.get_config()
    except NotImplementedError:  # a layer that cannot be saved
        config = {}
    return [type(layer), _without_names(config)]


def _without_names(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_names(each) for key, each in config.items() if key != "name"}
    if isinstance(config, list | tuple):
        return [_without_names(each) for each in config]
    return config


def suffix_of(data: bytes) -> str:
    """Return the suffix of a checkpoint's file name, by which Keras recognizes its format."""
    return ".keras" if data.startswith(b"PK") else ".weights.h5"


def add_state(path: Path, state: Mapping[str, object]) -> None:
    """Adds to a checkpoint what Keras does not save; Keras can still load it.

    Args:
        path: a ``.keras`` or HDF5 file.
        state: can be written as JSON.
    """
    text = json.dumps(state)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_STATE, text)
    else:
        with h5py.File(path, "a") as file:
            file.create_dataset(_STATE, data=text)


def state_in(path: Path) -> dict[str, Any]:
    """Return the state that :func:`add_state` added.

    Raises:
        UsageError: nothing was.
    """
    text = None
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if _STATE in archive.namelist():
                text = archive.read(_STATE)
    elif h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            text = file[_STATE][()] if _STATE in file else None
    if text is None:
        raise UsageError(
            "the run has a checkpoint that no KerasEstimator wrote; use another run_id"
        )
    state: dict[str, Any] = json.loads(text)
    return state
