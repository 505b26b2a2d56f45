"""Variables of an elastic state: their values are kept in host memory, and sent by the engine.

The engine sends them without operations of TensorFlow. So the names that the ranks agree on do not
depend on what a process has done before, in graphs neither, and nothing is traced.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from horovod._rank import context
from horovod._train.arrays import broadcast_arrays
from horovod._train.elastic.checkpoint.data import Lent
from horovod._train.elastic.handlers import StateHandler
from horovod._train.same_parameters import Parameter
from horovod.tensorflow.state import tensorflow_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_NAME = "elastic.variables"


class VariablesHandler(StateHandler):
    """Keeps the variables of an object, and sends them to all ranks.

    Args:
        value: the object.
        shared: its variables that all ranks have the same values of; all that exist later on must
            exist when this is called.
        session: returns the session that holds the values; None in eager mode.
        own: further variables, of which each rank keeps its own values.
    """

    def __init__(
        self,
        value: Any,
        shared: Callable[[Any], Iterable[Any]],
        session: Callable[[], Any],
        own: Callable[[Any], Iterable[Any]] = lambda _: (),
    ) -> None:
        super().__init__(value)
        self._shared = shared
        self._own = own
        self._session = session
        self._saved: list[tuple[Any, np.ndarray]] = []
        # Of the snapshot before. Memory that is new each time takes three times as long.
        self._spare: list[np.ndarray] = []
        # Who else has the arrays of the last snapshot: variables, or the list for a file.
        self._is_lent = False
        self._given: weakref.ref[Lent[np.ndarray]] | None = None
        self._save_if_initialized()

    def save(self) -> None:
        variables = [*_behind(self._shared(self.value)), *_behind(self._own(self.value))]
        values = read(variables, self._session(), self._spare)
        is_given = self._given is not None and self._given() is not None
        is_free = not self._is_lent and not is_given
        self._spare = [value for _, value in self._saved] if is_free else []
        self._is_lent, self._given = False, None
        self._saved = list(zip(variables, values, strict=True))

    def restore(self) -> None:
        self._is_lent = True  # a variable may use the memory of what it was assigned
        write(self._saved, self._session())

    def snapshot(self) -> list[np.ndarray]:
        given = Lent(value for _, value in self._saved)
        self._given = weakref.ref(given)
        return given

    def load(self, snapshot: list[np.ndarray]) -> None:
        self.save()  # what exists now
        self._saved = [
            (variable, value) for (variable, _), value in zip(self._saved, snapshot, strict=True)
        ]
        self.restore()

    def sync(self) -> None:
        session = self._session()
        shared = _behind(self._shared(self.value))
        values = read(shared, session)
        send(shared, values, self.root)
        write(zip(shared, values, strict=True), session)

    def _save_if_initialized(self) -> None:
        """In a graph a state may be made before there are values."""
        with suppress(tf.errors.FailedPreconditionError):
            self.save()


def read(
    variables: Sequence[Any], session: Any, spare: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """Copies of the values, as arrays that can be written.

    Args:
        variables: those of TensorFlow.
        session: that holds the values; None in eager mode.
        spare: arrays of the same variables whose memory may be used.

    Raises:
        tf.errors.FailedPreconditionError: some have no value yet.
    """
    if session is None:
        if len(spare) == len(variables):
            return [_read_into(array, each) for array, each in zip(spare, variables, strict=True)]
        return [_read_new(variable) for variable in variables]
    # Its arrays may lie in the memory of the variables.
    return [np.array(value) for value in session.run(list(variables))]


def _read_new(variable: Any) -> np.ndarray:
    return np.require(variable.numpy(), requirements=["C", "W"])


def _read_into(array: np.ndarray, variable: Any) -> np.ndarray:
    try:
        value = np.asarray(memoryview(variable.value()))
    except (TypeError, ValueError, BufferError):  # a type that buffers do not know, as bfloat16
        return _read_new(variable)
    if (value.shape, value.dtype) != (array.shape, array.dtype):
        return _read_new(variable)
    np.copyto(array, value)
    return array


def write(values: Iterable[tuple[Any, np.ndarray]], session: Any) -> None:
    """Gives each variable a value.

    Args:
        values: variables of TensorFlow, each with an array of its dtype and shape.
        session: that holds the values; None in eager mode.
    """
    for variable, value in values:
        if session is None:
            variable.assign(value)
        else:  # no new operation: the graph may be finalized
            initializer = variable.initializer
            session.run(initializer, {initializer.inputs[1]: value})


def send(variables: Sequence[Any], values: Sequence[np.ndarray], root: int) -> None:
    """Overwrites the arrays on all ranks with those of the root; collective, one operation.

    Args:
        variables: whose values they are.
        values: C-contiguous; of the same shapes and dtypes on all ranks.
        root: a rank of the job.

    Raises:
        MismatchError: the ranks have different variables.
        HorovodInternalError: the job failed.
    """
    described = [
        Parameter(f"{index:06}", f"{value.dtype.name} {value.shape}", variable.name)
        for index, (variable, value) in enumerate(zip(variables, values, strict=True))
    ]
    broadcast_arrays(context.global_group(), described, values, root, _NAME)


def is_variable(thing: Any) -> bool:
    """Whether something is a variable of TensorFlow or Keras."""
    return any(isinstance(each, tf.Variable) for each in (thing, getattr(thing, "value", None)))


def _behind(variables: Iterable[Any]) -> list[Any]:
    return [tensorflow_variable(variable) for variable in variables]
