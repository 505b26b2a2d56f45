"""The contract suite's view of horovod.keras on TensorFlow, JAX and PyTorch.

Its functions take neither process sets nor weights, and it has no handles, joins or objects: so of
the suite, it can be asked about collectives, numbers and gradients.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import horovod.keras as hvd
from horovod.errors import HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_ERRORS_OF_TENSORFLOW = {
    "InvalidArgumentError": UsageError,
    "FailedPreconditionError": HorovodInternalError,
    "UnknownError": HorovodInternalError,
    "AbortedError": HorovodInternalError,
}


class Lacking(Exception):
    """A check needs what the interface for Keras does not have."""


class KerasApi:
    """See :class:`collectives.Api`."""

    interface = hvd
    abilities = ("passes", "mean of passes")
    backend = keras.backend.backend()
    # JAX compiles each dtype and shape anew, and keras.ops has fewer than the frameworks.
    lacking_dtypes = (
        *("bool", "int8", "int16", "uint8", "uint16", "uint32", "uint64"),
        *(("float16", "int64") if backend == "jax" else ()),
    )

    def tensor(self, values: Any, dtype: str) -> Any:
        return keras.ops.cast(keras.ops.convert_to_tensor(np.asarray(values)), dtype)

    def values(self, tensor: Any) -> Any:
        tensor = keras.ops.convert_to_tensor(tensor)
        is_float = "float" in self.dtype(tensor)
        wide = keras.ops.cast(tensor, "float64" if is_float else "int64")
        return np.array(keras.ops.convert_to_numpy(wide))

    def dtype(self, tensor: Any) -> str:
        return str(keras.backend.standardize_dtype(tensor.dtype))

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        if function not in hvd.__all__:
            raise Lacking(function)
        public = getattr(hvd, function)
        try:
            inspect.signature(public).bind(*args, **kwargs)
        except TypeError as error:
            raise Lacking(f"{function}: {error}") from None
        try:
            return public(*args, **kwargs)
        except Exception as error:
            kind = _ERRORS_OF_TENSORFLOW.get(type(error).__name__)
            if kind is None:
                raise
            raise kind(str(error)) from error

    def start(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        raise Lacking("handles")

    def finish(self, handle: Any) -> Any:
        raise Lacking("handles")

    def gradient(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        raise Lacking("derivatives of collectives")

    def reduced(
        self, passes: list[dict[str, Any]], weights: list[float] | None, is_mean: bool
    ) -> dict[str, Any]:
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=len(passes),
            average_aggregated_gradients=is_mean,
        )  # fmt: skip
        variables = [
            keras.Variable(np.zeros(values.shape), dtype=values.dtype.name, name=name)
            for name, values in passes[0].items()
        ]
        optimizer.build(variables)
        for tree in passes:
            gradients = [keras.ops.convert_to_tensor(values) for values in tree.values()]
            optimizer.apply(gradients, variables)
        return {
            name: -np.array(variable.numpy())
            for name, variable in zip(passes[0], variables, strict=True)
        }


def run_all_checks() -> list[str]:
    """Run what may concern values and gradients on each rank; return the names of what ran."""
    import collectives
    import exact_numbers
    import gradients

    collectives.SHAPES = ((17,),) if KerasApi.backend == "jax" else ((), (0,), (3, 17, 5))
    done = []
    for check in (*collectives.CHECKS, *exact_numbers.CHECKS, *gradients.CHECKS):
        try:
            check(KerasApi(), hvd.rank(), hvd.size())
        except Lacking:
            continue
        done.append(check.__name__)
    return done
