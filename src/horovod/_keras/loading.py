"""Loading a model so that its training goes on with all ranks."""

from __future__ import annotations

import json
import sys
import zipfile
from typing import TYPE_CHECKING, Any

from horovod._keras.reducing_optimizer import ReducingOptimizer
from horovod._keras.seam import seam_of
from horovod._keras.which import ROOTS, generation_of, keras_in_use, keras_of
from horovod._train.compression import NoneCompressor
from horovod.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from horovod._train.compression import CompressorLike


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, object] | None = None,
    compression: CompressorLike = NoneCompressor,
    legacy_opts: bool = False,
    shard_state: bool = False,
) -> Any:
    """Loads a model whose optimizer becomes a ``DistributedOptimizer``, with its saved state.

    The state is what Keras loads of it: Keras 2 loads none from folders, and none of legacy
    optimizers from ``.keras``; HDF5 files have it always.

    If both Keras 3 and tf_keras are loaded, the classes that are given decide which one loads the
    model, otherwise the version in the file.

    Args:
        filepath: what ``model.save`` wrote.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: further classes and functions by name, as for ``keras.models.load_model``;
            they count more than ``custom_optimizers``.
        compression: how gradients travel.
        legacy_opts: accepted for Keras 2, where the file says which optimizers are legacy ones.
        shard_state: whether each rank keeps its share of the optimizer's state; the file may be of
            a job with another number of ranks, or of one without Horovod.

    Raises:
        UsageError: ``legacy_opts`` is True with Keras 3.

    Example:
        >>> model = hvd.load_model("checkpoint.keras")
        >>> model.fit(images, labels)
    """
    known: dict[str, Any] = {kind.__name__: kind for kind in custom_optimizers or ()}
    known |= custom_objects or {}
    keras = _keras_for(filepath, list(known.values()))
    if legacy_opts and generation_of(keras) >= 3:
        raise UsageError("legacy_opts=True: Keras 3 has no legacy optimizers")
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, ReducingOptimizer):
        return model
    seam = seam_of(keras)
    seam.adapt_compiled(model)
    if generation_of(keras) >= 3 and not _trains(optimizer, model):
        optimizer = _built_again(optimizer, model, filepath)
    model.optimizer = seam.distribute(optimizer, compression=compression, shard_state=shard_state)
    return model


def _keras_for(filepath: Any, classes: Sequence[Any]) -> Any:
    """The Keras that is to load a file."""
    for kind in classes:
        keras = keras_of(kind) if isinstance(kind, type) else None
        if keras is not None:
            return keras
    loaded = [sys.modules[root] for root in ROOTS if root in sys.modules]
    if len(loaded) > 1:
        wrote = _version_in(filepath).partition(".")[0]
        for keras in loaded:
            if wrote == str(generation_of(keras)):
                return keras
    return keras_in_use()


def _version_in(filepath: Any) -> str:
    """The version of the Keras that wrote a file; empty if unknown."""
    if zipfile.is_zipfile(filepath):
        with zipfile.ZipFile(filepath) as archive:
            return str(json.loads(archive.read("metadata.json")).get("keras_version", ""))
    import h5py

    if not h5py.is_hdf5(filepath):
        return ""
    with h5py.File(filepath, "r") as file:
        return str(file.attrs.get("keras_version", ""))


def _trains(optimizer: Any, model: Any) -> bool:
    """Whether an optimizer of Keras 3 is built for the variables of its model, or not yet built."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    built_for = {id(variable) for variable in inner._trainable_variables}
    return not inner.built or all(id(v) in built_for for v in model.trainable_variables)


def _built_again(optimizer: Any, model: Any, filepath: Any) -> Any:
    """An optimizer with the state in an HDF5 file.

    Keras 3 builds the optimizer of such a file for no variables at all, and loses its state.
    """
    again = type(optimizer).from_config(optimizer.get_config())
    again.build(model.trainable_variables)
    values = _optimizer_weights(filepath)
    fits = [v.shape for v in values] == [tuple(v.shape) for v in again.variables]
    if fits:
        for variable, value in zip(again.variables, values, strict=True):
            variable.assign(value)
    else:
        again.iterations.assign(optimizer.iterations)
    return again


def _optimizer_weights(filepath: Any) -> list[Any]:
    """Return what Keras saved of an optimizer, in the order of its variables."""
    import h5py

    if not h5py.is_hdf5(filepath):
        return []
    with h5py.File(filepath, "r") as file:
        weights = file.get("optimizer_weights")
        if weights is None:
            return []
        # Long lists of names are in several attributes: weight_names0, weight_names1 ...
        lists = [weights.attrs.get("weight_names")]
        if lists[0] is None:
            count = sum(key.startswith("weight_names") for key in weights.attrs)
            lists = [weights.attrs[f"weight_names{i}"] for i in range(count)]
        return [weights[name][()] for names in lists for name in names]
