"""Adds up gradients over several passes in variables, which a jitted step carries along."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from horovod._keras.reducer import key_of
from horovod._train.gradients import check_passes
from horovod.jax.keras.reducer import weighed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from horovod._train.elastic.ledger import Share
    from horovod.jax.keras.reducer import JaxReducer


_logger = logging.getLogger(__name__)


class TracedAggregation:
    """Communicates and steps in every n-th pass only.

    Args:
        passes: n, at least 1.
        is_mean: divide the reduced sums by n.
        reducer: reduces the sums.
    """

    def __init__(self, passes: int, is_mean: bool, reducer: JaxReducer) -> None:
        self._passes = check_passes(passes)
        self._is_mean = is_mean
        self._reducer = reducer
        self._sums: dict[Hashable, Any] = {}
        self._count: Any = None

    @property
    def variables(self) -> list[Any]:
        """The number of passes since the last step, and the sums; none before :meth:`build`."""
        return [] if self._count is None else [self._count, *self._sums.values()]

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the sums, which are zero.

        Args:
            variables: whose gradients they are.
        """
        if self._count is None:
            self._count = keras.Variable(0, dtype="int32", trainable=False, name="passes")
        for variable in variables:
            if key_of(variable) not in self._sums:
                zeros = keras.ops.zeros(variable.shape, variable.dtype)
                self._sums[key_of(variable)] = keras.Variable(
                    zeros, dtype=variable.dtype, trainable=False, name="sum"
                )

    @property
    def controls(self) -> list[Any]:
        """What an elastic training says of a pass; variables of their own in a jitted step."""
        return []

    def begin_again(self) -> None:
        """Forget the passes since the last step: in a new job, newcomers have none of them."""
        count = 0 if self._count is None else int(self._count.numpy())
        if not count:
            return
        _logger.warning(
            "%s: the job has changed after %d of %d passes of a step; their gradients are dropped, "
            "and the step begins again",
            self._reducer.settings.name,
            count,
            self._passes,
        )
        for variable in self.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))

    def is_between_passes(self, optimizer: Any) -> bool:
        """Whether gradients have been added up that are not reduced yet."""
        return self._count is not None and int(self._count.numpy()) > 0

    def step(
        self,
        optimizer: Any,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Adds gradients to the sums; in the n-th pass, reduces these and takes the step.

        Args:
            optimizer: has been built; its ``iterations`` are raised if the step is not taken.
            apply: takes the step of the plain optimizer.
            gradients: of this pass; a missing one stays missing.
            variables: to which they belong.

        Raises:
            UsageError: a gradient is sparse, and ``sparse_as_dense`` is False.
        """
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        sums = [self._sums[key_of(variables[i])] for i in places]
        totals = [
            held.value + self._reducer.dense(gradients[i], variables[i]).astype(held.value.dtype)
            for held, i in zip(sums, places, strict=True)
        ]
        known = {id(each) for each in self.variables}
        touched = list(variables)
        touched += [each for each in optimizer.variables if id(each) not in known]

        def take_step(totals: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
            whole: list[Any] = [None] * len(variables)
            for place, total in zip(places, totals, strict=True):
                whole[place] = total

            def change() -> None:
                reduced = self._reducer.reduce(whole, variables)
                if self._is_mean:
                    reduced = [None if each is None else each / self._passes for each in reduced]
                apply(reduced, variables)

            after = values_after(change, touched, values)
            return [jnp.zeros_like(total) for total in totals], after

        def wait(totals: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
            return totals, values_after(lambda: optimizer.iterations.assign_add(1), touched, values)

        count = self._count.value + 1
        is_last = count >= self._passes
        operands = (totals, [variable.value for variable in touched])
        if isinstance(is_last, jax.core.Tracer):
            rest, values = jax.lax.cond(is_last, take_step, wait, *operands)
        else:
            # Outside of jit, JAX would compile both branches for each step.
            rest, values = (take_step if is_last else wait)(*operands)
        for variable, value in zip([*sums, *touched], [*rest, *values], strict=True):
            variable.assign(value)
        self._count.assign(jnp.where(is_last, 0, count))


class StepAggregation(TracedAggregation):
    """Communicates and steps with the last pass of a step, by the mean over all its samples.

    An elastic training says which pass it is, by a variable that the jitted step carries along. In
    the others the optimizer's ``iterations`` stay, and with them schedules of its rate.

    Args:
        reducer: reduces the means over this rank's samples, weighed by their number.

    Attributes:
        control: the part of this pass in the mean, whether it begins a step, and whether it ends
            one; float32, or float64 where JAX computes in it, of shape (3,).
    """

    def __init__(self, reducer: JaxReducer) -> None:
        super().__init__(1, False, reducer)
        dtype = "float64" if jax.config.jax_enable_x64 else "float32"
        self.control = keras.Variable(
            np.array(control_of(None)), dtype=dtype, trainable=False, name="pass_of_step"
        )

    @property
    def variables(self) -> list[Any]:
        """The sums; none before :meth:`build`."""
        return [*self._sums.values()]

    @property
    def controls(self) -> list[Any]:
        """The control."""
        return [self.control]

    def begin_again(self) -> None:
        """Forget the passes of a step that was not finished; ``fit`` may have had the values."""
        for variable in self.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))
        self.control.assign(np.array(control_of(None)))

    def is_between_passes(self, optimizer: Any) -> bool:
        """Whether gradients have been added up that are not reduced yet."""
        return not self.control.numpy()[2]

    def step(
        self,
        optimizer: Any,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Adds gradients to the sums; in the last pass, reduces these and takes the step.

        Args:
            optimizer: has been built.
            apply: takes the step of the plain optimizer.
            gradients: of this pass; a missing one stays missing.
            variables: to which they belong.

        Raises:
            UsageError: a gradient is sparse, and ``sparse_as_dense`` is False.
        """
        part, is_first, is_last = self.control.value
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        sums = [self._sums[key_of(variables[i])] for i in places]
        totals = [
            jnp.where(is_first > 0, 0, held.value)
            + weighed(self._reducer.dense(gradients[i], variables[i]), part).astype(held.dtype)
            for held, i in zip(sums, places, strict=True)
        ]
        known = {id(each) for each in (*self.variables, *self.controls, *variables)}
        touched = list(variables)
        touched += [each for each in optimizer.variables if id(each) not in known]

        def take_step(totals: list[Any], values: list[Any]) -> list[Any]:
            whole: list[Any] = [None] * len(variables)
            for place, total in zip(places, totals, strict=True):
                whole[place] = total
            return values_after(
                lambda: apply(self._reducer.reduce(whole, variables), variables), touched, values
            )

        def wait(totals: list[Any], values: list[Any]) -> list[Any]:
            return values

        operands = (totals, [variable.value for variable in touched])
        if isinstance(is_last, jax.core.Tracer):
            values = jax.lax.cond(is_last > 0, take_step, wait, *operands)
        else:
            values = (take_step if is_last > 0 else wait)(*operands)
        for variable, value in zip([*sums, *touched], [*totals, *values], strict=True):
            variable.assign(value)


def control_of(share: Share | None) -> list[float]:
    """Return what :class:`StepAggregation` must know of a pass.

    Args:
        share: this rank's samples in it; None where a batch is a step, as ever.
    """
    if share is None or share.passes == 1:
        return [1.0, 1.0, 1.0]
    return [share.samples / share.of_step, float(share.number == 0), float(share.ends_step)]


def values_after(
    change: Callable[[], Any], variables: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """Return what some variables are after a change, which leaves the variables themselves alone.

    Args:
        change: assigns to some of them.
        variables: all that it may read or assign to.
        values: of these, before.
    """
    mapping = list(zip(variables, values, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        change()
    return [scope.get_current_value(variable) for variable in variables]
