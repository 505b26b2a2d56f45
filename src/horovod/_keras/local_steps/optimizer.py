"""Optimizers of Keras 3 that step alone, and are brought together every few steps."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import keras

from horovod._keras.loss_scale import refuse_scaler
from horovod._keras.reducing_optimizer import CallableList, ReducingOptimizer
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horovod._keras.local_steps.outer_steps import OuterSteps

_logger = logging.getLogger("horovod")

SCALER_REFUSAL = (
    "LocalSGD and DiLoCo with a LossScaleOptimizer, which mixed_float16 needs, are not possible "
    "with Keras, as ranks would skip different steps: train in mixed_bfloat16, or compile with "
    "auto_scale_loss=False"
)


class LocalStepsOptimizer(ReducingOptimizer):
    """The methods that LocalSGD and DiLoCo add to the class of an optimizer.

    A saved model has the variables of the plain optimizer alone, and so loads without Horovod.
    """

    _reducer: OuterSteps

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer, then those that all ranks share."""
        held = CallableList(super().variables)  # type: ignore[misc]  # of the plain class
        held += [] if "_reducer" not in vars(self) else self._reducer.variables
        return held

    @property
    def outer_variables(self) -> list[Any]:
        """The variables that all ranks share, in the order of those that it trains.

        They are those of the last exchanges, and have the same bits on all ranks.
        """
        return list(self._reducer.outer)

    @property
    def outer_optimizer(self) -> Any:
        """The optimizer of the outer variables, for example for a schedule; None for LocalSGD."""
        return self._reducer.optimizer

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables of the optimizer, and the outer ones.

        Args:
            variables: what it trains.
        """
        plain: Any = super()
        plain.build(variables)
        self._reducer.build(list(variables))

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Takes a step by this rank's gradients, and exchanges changes if it is time.

        Args:
            grads: of this rank.
            trainable_variables: to which they belong; those of the last ``build`` if None.

        Raises:
            ReplicasDivergedError: at the first step, if the ranks have different variables; in a
                compiled step an error of the framework with the same text.
            UsageError: a LossScaleOptimizer holds this optimizer.
            HorovodInternalError: the job failed.
        """
        plain: Any = super()
        this: Any = self
        refuse_scaler(SCALER_REFUSAL)
        grads = list(grads)
        given = None if trainable_variables is None else list(trainable_variables)
        if not this.built and given:
            with keras.name_scope(this.name):
                this.build(given)
        if not grads or not this.built:
            plain.apply(grads, given)  # which says what is wrong
            return
        self._reducer.begin()
        plain.apply(grads, given)
        self._reducer.after_step()

    def synchronize(self) -> None:
        """Bring the variables of all ranks together now; all ranks must call this.

        Call it before the model is evaluated or saved, as the steps since the last exchange have
        changed only the variables of the rank that took them. In ``model.fit``,
        ``hvd.callbacks.LocalStepsCallback`` does so.

        Raises:
            UsageError: the optimizer has not been built yet.
            HorovodInternalError: an exchange failed.
        """
        self._built().synchronize()

    def get_outer_state(self) -> dict[str, Any]:
        """Return the outer variables and all that belongs to them, which no saved model has.

        Returns:
            Arrays of NumPy by name, for example for ``numpy.savez(file, **state)``.

        Raises:
            UsageError: the optimizer has not been built yet.
        """
        return self._built().state()

    def set_outer_state(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`get_outer_state` returned.

        Args:
            state: arrays by name, such as those of ``numpy.load(file)``.

        Raises:
            UsageError: it is a state of another optimizer, or this one has not been built yet.
        """
        self._built().set_state(state)

    def save_own_variables(self, store: Any) -> None:
        """Save the variables that the plain optimizer has, too."""
        for index, variable in enumerate(super().variables):  # type: ignore[misc]
            store[str(index)] = keras.ops.convert_to_numpy(variable.value)

    def load_own_variables(self, store: Any) -> None:
        """Load what :meth:`save_own_variables` saved."""
        held = super().variables  # type: ignore[misc]
        if len(store.keys()) != len(held):
            plain: Any = super()
            plain.load_own_variables(store)  # which says so
            return
        for index, variable in enumerate(held):
            variable.assign(store[str(index)])
        self._reducer.begin_again()  # what was saved says nothing of outer variables

    def _built(self) -> OuterSteps:
        this: Any = self
        if not this.built:
            raise UsageError(
                "the optimizer has no variables yet: call build(model.trainable_variables) first"
            )
        return self._reducer

    def _begin(self) -> None:
        super()._begin()
        this: Any = self
        if this.built:
            self._reducer.build(list(this._trainable_variables))
        weakref.finalize(self, _warn_of_steps_alone, self._reducer)


def _warn_of_steps_alone(steps: OuterSteps) -> None:
    """Say at the end that ranks have different variables, if they do."""
    alone = 0
    with suppress(Exception):  # of a framework that has ended before
        alone = steps.num_alone()
    if alone and steps.num_ranks > 1:
        _logger.warning(
            "the last %d steps of the optimizer made at %s were not averaged: the ranks have "
            "different parameters. Give model.fit hvd.callbacks.LocalStepsCallback(), or call "
            "optimizer.synchronize() on all ranks before the model is evaluated or saved",
            alone,
            steps.settings.call_site,
        )
