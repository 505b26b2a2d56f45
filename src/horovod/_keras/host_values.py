"""The values of the variables of Keras 3 in host memory, and how ranks get those of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from horovod._keras.sharding.whole import refuse_parts
from horovod._train.arrays import broadcast_arrays
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.same_parameters import Parameter
from horovod._train.structure import without_numbers
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def broadcast_variables(
    variables: Iterable[keras.Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites variables on all ranks with the values of the root; one operation.

    Args:
        variables: of Keras, of the same shapes and dtypes on all ranks. They are matched by their
            place, since automatic names may differ between ranks, but for their last words, such as
            kernel or momentum, which are compared.
        root_rank: the global rank whose values count.
        process_set: the ranks that take part.

    Raises:
        UsageError: something is no variable of Keras, or a share of an optimizer's state.
        MismatchError: the ranks have different variables.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.broadcast_variables(model.variables, root_rank=0)
    """
    targets = [_checked(variable) for variable in variables]
    refuse_parts(targets)
    values = read(targets)
    send(targets, values, root_rank, "broadcast_variables", process_set)
    write(targets, values)


def send(
    variables: Sequence[Any],
    values: Sequence[np.ndarray],
    root: int,
    name: str,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites arrays on all ranks with those of the root; collective.

    Args:
        variables: whose values they are, for messages.
        values: what :func:`read` returned.
        root: a rank of the job.
        name: what the ranks agree on.
        process_set: the ranks that take part.

    Raises:
        MismatchError: the ranks have different variables.
        HorovodInternalError: the job failed.
    """
    described = [
        Parameter(f"{index:06}.{_own_name(v)}", f"{value.dtype.name} {value.shape}", v.path)
        for index, (v, value) in enumerate(zip(variables, values, strict=True))
    ]
    broadcast_arrays(group_of(process_set), described, values, root, name)


def read(variables: Iterable[Any]) -> list[np.ndarray]:
    """Return copies of the values, as arrays that can be written."""
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables]


def write(variables: Iterable[Any], values: Iterable[np.ndarray]) -> None:
    """Gives each variable a value."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _own_name(variable: Any) -> str:
    """Return the part of a name that is the same on all ranks: its last word.

    Names of layers, which Keras puts before it, differ where a rank has made other layers too.
    """
    return without_numbers(str(variable.name)).rpartition("_")[2]


def _checked(variable: Any) -> Any:
    if not isinstance(variable, keras.Variable):
        raise UsageError(f"{variable!r} is a {type(variable).__name__}, not a variable of Keras")
    return variable
