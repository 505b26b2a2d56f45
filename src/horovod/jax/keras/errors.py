"""What 8 bits round off gradients, in variables, which a jitted step carries along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from horovod._keras.reducer import key_of
from horovod.jax.error_feedback import NOBODY, GradientErrors

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence


class ErrorVariables:
    """The errors of the gradients of an optimizer's variables."""

    def __init__(self) -> None:
        self._kept_by: Any = None
        self._errors: dict[Hashable, Any] = {}

    @property
    def variables(self) -> list[Any]:
        """Whose the errors are, and the errors in float32; none before :meth:`build`."""
        return [] if self._kept_by is None else [self._kept_by, *self._errors.values()]

    def build(self, variables: Sequence[Any]) -> None:
        """Make the errors, which are zero.

        Args:
            variables: whose gradients they are of.
        """
        if self._kept_by is None:
            self._kept_by = keras.Variable(
                NOBODY, dtype="int32", trainable=False, name="errors_kept_by"
            )
        for variable in variables:
            if key_of(variable) not in self._errors:
                self._errors[key_of(variable)] = keras.Variable(
                    keras.ops.zeros(variable.shape, "float32"),
                    dtype="float32", trainable=False, name="error",
                )  # fmt: skip

    def begin_again(self) -> None:
        """Let the errors be zero: in a new job, ranks may have other numbers or an older state."""
        if self._kept_by is not None:
            self._kept_by.assign(NOBODY)
            # Each of them, as the first reduction of any makes all of them this rank's again.
            for error in self._errors.values():
                error.assign(keras.ops.zeros(error.shape, "float32"))

    def of(self, variables: Mapping[str, Any]) -> GradientErrors | None:
        """Return the errors of some variables, under the same keys; None if any has none."""
        if self._kept_by is None or any(
            key_of(each) not in self._errors for each in variables.values()
        ):
            return None
        values = {key: self._errors[key_of(each)].value for key, each in variables.items()}
        return GradientErrors(self._kept_by.value, values)

    def keep(self, variables: Mapping[str, Any], errors: GradientErrors) -> None:
        """Keep the errors of some variables.

        Args:
            variables: as they were given to :meth:`of`.
            errors: behind their reduction.
        """
        self._kept_by.assign(errors.kept_by)
        for key, variable in variables.items():
            self._errors[key_of(variable)].assign(errors.values[key])
