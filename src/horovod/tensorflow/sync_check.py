"""Finds replicas that have diverged, between models, optimizers and variables of TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from horovod._train import sync_check
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.sync_check import Array
from horovod.errors import UsageError
from horovod.tensorflow.state import tensorflow_variable

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

    from horovod.tensorflow.interface_types import Session


def check_in_sync(
    values: object, process_set: ProcessSet = global_process_set, *, session: Session | None = None
) -> None:
    """Checks that variables have the same bits on all ranks, and says which do not, and where.

    Every byte is read; one small operation compares all variables. All ranks must call it.

    Args:
        values: a model, a layer or an optimizer of Keras, a tf.Module, an optimizer of
            tf.compat.v1; or variables, as a list or by name. They may differ for good reason, as
            moving averages of BatchNormalization and seeds of Dropout do; then give
            ``model.trainable_variables``.
        process_set: the ranks that compare.
        session: where the values of a graph's variables are; the default session if None.

    Raises:
        ReplicasDivergedError: on all ranks, if a variable differs in bits, dtype or shape, or is
            missing on some; it names the first variables and the ranks that differ from the
            majority.
        UsageError: ``values`` is something else, or there is no session.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.check_in_sync(model.trainable_variables)
    """
    site = call_site()
    named = list(_named_variables(values))
    sync_check.check_in_sync(group_of(process_set), _arrays(named, session), site)


def _named_variables(values: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        yield from ((str(name), tensorflow_variable(variable)) for name, variable in values.items())
        return
    seen: dict[str, int] = {}
    for variable in _variables_of(values):
        found = tensorflow_variable(variable)
        name = str(getattr(variable, "path", None) or found.name.split(":")[0])
        seen[name] = seen.get(name, 0) + 1
        # Names need not be unique in eager mode.
        yield (name if seen[name] == 1 else f"{name}.{seen[name]}"), found


def _variables_of(values: Any) -> Iterable[Any]:
    # Models, layers and optimizers of Keras, modules of TensorFlow, and optimizers of TF 1, where
    # it is a method.
    variables = getattr(values, "variables", values)
    variables = variables() if callable(variables) else variables
    if isinstance(variables, tf.Variable):
        return [variables]
    if isinstance(variables, str | bytes | tf.Tensor | np.ndarray) or not isinstance(
        variables, Iterable
    ):
        raise UsageError(
            f"check_in_sync cannot take a {type(values).__name__}; give a model, an optimizer, or "
            "variables such as model.trainable_variables"
        )
    return variables


def _arrays(named: list[tuple[str, Any]], session: Any) -> Iterator[Array]:
    if tf.executing_eagerly():
        yield from (_array(name, variable, variable.numpy) for name, variable in named)
        return
    session = session or tf.compat.v1.get_default_session()
    if session is None:
        raise UsageError(
            "check_in_sync needs a session to read the variables of a graph; give session=…"
        )
    values = session.run([variable for _, variable in named])
    for (name, variable), value in zip(named, values, strict=True):
        yield _array(name, variable, partial(np.asarray, value))


def _array(name: str, variable: Any, values: Callable[[], Any]) -> Array:
    dtype = variable.dtype.base_dtype
    shape = tuple(variable.shape)

    def data() -> BytesLike:
        # As bytes, since NumPy's buffers know nothing of bfloat16.
        return np.ascontiguousarray(values()).reshape(-1).view(np.uint8).data

    return Array(name, f"{dtype.name} {shape}", math.prod(shape) * dtype.size, data)
