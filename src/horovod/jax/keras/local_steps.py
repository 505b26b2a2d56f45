"""Local steps with Keras on JAX, inside and outside of jit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from horovod._keras.local_steps.backend import LocalStepsBackend
from horovod._keras.local_steps.outer_steps import OuterSteps
from horovod._rank.reduction import ReduceOp
from horovod.jax.digests import check_equal
from horovod.jax.keras.aggregation import values_after
from horovod.jax.ops import allreduce

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._keras.reducing_optimizer import Wrapping


class JaxLocalSteps(LocalStepsBackend):
    """Exchanges in branches of the program of a step."""

    def run_if(self, condition: Any, change: Callable[[], None], touched: Sequence[Any]) -> None:
        """Change variables if a condition is true when the step runs."""
        if not isinstance(condition, jax.core.Tracer):
            # Outside of jit, JAX would compile both branches each time.
            if condition:
                change()
            return
        values = jax.lax.cond(
            condition,
            lambda values: values_after(change, touched, values),
            lambda values: values,
            [variable.value for variable in touched],
        )
        for variable, value in zip(touched, values, strict=True):
            variable.assign(value)

    def copied(self, tensor: Any) -> Any:
        """Return another array, as a variable keeps the one that it is assigned."""
        return jnp.array(tensor, copy=True)  # ``fit`` donates the memory of variables

    def average(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Return the averages over the ranks; collective."""
        settings = self.settings
        return list(
            allreduce(
                list(tensors), op=ReduceOp.AVERAGE, compression=settings.compression,
                process_set=settings.process_set, name=name,
            )
        )  # fmt: skip

    def compare(self, tensors: Sequence[Any], names: Sequence[str], name: str, what: str) -> Any:
        """Compare tensors between the ranks; collective."""
        return check_equal(tensors, names, self.settings.process_set, name, what)


def begin(wrapping: Wrapping) -> tuple[OuterSteps, None]:
    """Make what brings the ranks of an optimizer together."""
    return OuterSteps(JaxLocalSteps(wrapping.settings)), None
