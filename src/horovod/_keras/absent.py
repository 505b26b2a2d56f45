"""What only Keras on TensorFlow has; its use with another backend says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from horovod.errors import UsageError

F = TypeVar("F")


def as_written(function: F) -> F:
    """Return the function, as nothing here rewrites what a program calls, as AutoGraph does."""
    return function


class MappedIndices:
    """``hvd.elastic.MappedIndices``, which belongs to data sets of ``tf.data``.

    Raises:
        UsageError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError("hvd.elastic.MappedIndices is for tf.data, with Keras on TensorFlow only")


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Refuse, as only graphs of ``tf.compat.v1`` have a list of all variables.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "broadcast_global_variables works in graphs of tf.compat.v1 only, as there are no global "
        "variables elsewhere; use hvd.broadcast_variables(model.variables, root_rank), or "
        "hvd.callbacks.BroadcastGlobalVariablesCallback in model.fit"
    )
