"""What compression to 8 bits has rounded off gradients, which is added to those of the next step.

The engine does the sums. Each rank has its own errors: together, those of all ranks are what the
results lack. So they go with the number of their rank, and a rank takes none of another one.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import tensorflow as tf

from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.group import Group
    from horovod._settings.config import Config

_NOBODY = -1


class ErrorFeedback:
    """The errors of the gradients of some variables, which live as long as the variables.

    In a new job they are zero, as its ranks may have other numbers, or go back to a commit.
    """

    def __init__(self) -> None:
        self._errors: dict[int, Any] = {}  # by the id of a variable, which cannot be hashed
        self._kept_by: Any = None
        self._context = context.current().number
        _feedbacks.add(self)

    @property
    def variables(self) -> list[Any]:
        """Whose the errors are, a scalar of int32, and the errors, float32; none before a step."""
        return [] if self._kept_by is None else [self._kept_by, *self._errors.values()]

    def of(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Return the errors of gradients: variables, or None where there can be none.

        Args:
            variables: to which the gradients belong. What a tape watches and is no variable is new
                in each step, and has no errors.
            gradients: of them; sparse ones will be dense.
        """
        return [
            self._of(each, gradient) for each, gradient in zip(variables, gradients, strict=True)
        ]

    @property
    def kept_by(self) -> Any:
        """Whose the errors are."""
        if self._kept_by is None:
            # Outside of the graph that is being traced: it may be traced again.
            with tf.init_scope():
                self._kept_by = tf.Variable(
                    _NOBODY, trainable=False, dtype=tf.int32, name="errors_kept_by"
                )
        return self._kept_by

    def begin_in_job_of(self, number: int) -> None:
        """Let all errors be zero in the next step.

        Args:
            number: of the context that has joined a job; another one than that in which this was
                made changes nothing.
        """
        if number != self._context or self._kept_by is None:
            return
        with tf.init_scope():
            self._kept_by.assign(_NOBODY)
            # Each of them, as the first reduction of any makes all of them this rank's again.
            for error in list(self._errors.values()):
                error.assign(tf.zeros_like(error))

    def _of(self, variable: Any, gradient: Any) -> Any:
        if not isinstance(variable, tf.Variable):
            variable = getattr(variable, "value", None)
        if not isinstance(variable, tf.Variable) or not variable.shape.is_fully_defined():
            return None
        if not (gradient.dtype.is_floating or gradient.dtype.is_complex):
            return None
        known = self._errors.get(id(variable))
        if known is None:
            shape = [*variable.shape.as_list(), *([2] if gradient.dtype.is_complex else [])]
            with tf.init_scope():
                known = tf.Variable(tf.zeros(shape), trainable=False, name="error")
            self._errors[id(variable)] = known
            weakref.finalize(variable, self._errors.pop, id(variable), None).atexit = False
        return known


def works_here() -> bool:
    """Whether variables can hold errors: not in the graphs of tf.compat.v1."""
    return bool(tf.compat.v1.executing_eagerly_outside_functions())


def of_tapes() -> ErrorFeedback:
    """Return the errors of all tapes of this context: a script makes a new tape for each step."""
    return _of_tapes.get()


class _Feedbacks:
    """Lets all errors begin at zero in a new job."""

    def __init__(self) -> None:
        self._known: WeakSet[ErrorFeedback] = WeakSet()
        self._lock = threading.Lock()  # ranks may be threads

    def add(self, feedback: ErrorFeedback) -> None:
        with self._lock:
            self._known.add(feedback)

    def begun(self, config: Config, group: Group, number: int) -> None:
        with self._lock:
            known = list(self._known)
        for feedback in known:
            feedback.begin_in_job_of(number)

    def ended(self, group: Group) -> None:
        """The errors stay until the next job begins."""


_feedbacks = _Feedbacks()
_of_tapes: context.PerContext[ErrorFeedback] = context.PerContext(ErrorFeedback)
context.listen(_feedbacks)
