"""Elastic training with ``model.fit`` of Keras on JAX.

Example:
    >>> state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     model.fit(data, epochs=10 - state.epoch, callbacks=[
    ...         hvd.elastic.UpdateEpochStateCallback(state),
    ...         hvd.elastic.UpdateBatchStateCallback(state),
    ...         hvd.elastic.CommitStateCallback(state, batches_per_commit=100),
    ...     ])
    >>> train(state)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from horovod._keras.absent import MappedIndices
from horovod._keras.elastic_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from horovod._keras.elastic_fit import Forgiving
from horovod._keras.elastic_training import Keras3Training
from horovod._keras.state import Keras3State
from horovod._rank import context
from horovod._rank.context import generation
from horovod._train.elastic.state import ObjectState, State
from horovod.errors import UsageError
from horovod.jax.elastic.run import rejoin, run
from horovod.jax.errors import in_our_words
from horovod.jax.keras.aggregation import StepAggregation, TracedAggregation, control_of
from horovod.jax.keras.seam import SEAM

if TYPE_CHECKING:
    from horovod._train.elastic.ledger import Share
    from horovod.jax.keras.errors import ErrorVariables

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "MappedIndices",
    "ObjectState",
    "State",
    "Training",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "generation",
    "run",
]


class KerasState(Keras3State):
    """The state of training; see :class:`horovod._keras.state.Keras3State`.

    Gradients that ``backward_passes_per_step`` has added up are those of a rank, and of one job:
    they are not sent, and all ranks begin with the first pass after a change.
    """

    _seam = SEAM

    def on_reset(self) -> None:
        # What fit() holds outside of the variables would replace them later.
        self._seam.fetch_state(self._fitted)
        for handler in self._handlers.values():
            if (aggregation := _aggregation_of(handler.value)) is not None:
                aggregation.begin_again()
            if (errors := _errors_of(handler.value)) is not None:
                errors.begin_again()
        super().on_reset()

    def _variables_of_optimizer(self, optimizer: Any) -> list[Any]:
        found = super()._variables_of_optimizer(optimizer)
        aggregation = _aggregation_of(optimizer)
        errors = _errors_of(optimizer)
        own: set[int] = set()
        if aggregation is not None:
            own = {id(each) for each in (*aggregation.variables, *aggregation.controls)}
        own |= set() if errors is None else {id(each) for each in errors.variables}
        return [variable for variable in found if id(variable) not in own]


def _aggregation_of(value: Any) -> TracedAggregation | None:
    aggregation = getattr(value, "_agg_helper", None)
    return aggregation if isinstance(aggregation, TracedAggregation) else None


def _errors_of(value: Any) -> ErrorVariables | None:
    return (
        getattr(vars(value).get("_reducer"), "errors", None) if hasattr(value, "__dict__") else None
    )


class Training(Keras3Training):
    """See :class:`horovod._keras.elastic_training.Keras3Training`.

    The weight of a rank in a step is a variable of the optimizer that is not saved with a model, so
    that the jitted step is the same where ranks have different numbers of samples. It is traced
    again after a change of the job, and for the last batch of an epoch if that is smaller.
    """

    _state_class = KerasState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        state: Any = self._state
        if hasattr(state.optimizer, "inner_optimizer"):
            raise UsageError(
                "Training with a LossScaleOptimizer, which mixed_float16 needs, is not possible "
                "with Keras on JAX: use mixed_bfloat16"
            )
        dtype = "float64" if jax.config.jax_enable_x64 else "float32"
        weight = keras.Variable(1.0, dtype=dtype, trainable=False, name="weight_of_rank")
        self._reducer.weight = weight
        self._aggregation: StepAggregation | None = None
        self._control = control_of(None)

    def _joining(self) -> dict[str, Any]:
        return {"translating": in_our_words, "reset": rejoin}

    def _accumulate(self, optimizer: Any) -> None:
        if self._aggregation is None:
            self._aggregation = StepAggregation(self._reducer)
            optimizer._agg_helper = self._aggregation
            if optimizer.built:
                self._aggregation.build(optimizer._trainable_variables)

    def _before_step(self, share: Share) -> None:
        full = share.of_step * context.size() / share.total
        self._weight = 1.0 if share.is_full else full
        self._reducer.weight.assign(self._weight)
        self._begin_aggregation(None if self._step_samples is None else share)

    def _begin_aggregation(self, share: Share | None) -> None:
        self._control = control_of(share)
        if self._aggregation is not None:
            self._aggregation.control.assign(np.array(self._control))

    def _end_passes(self) -> None:
        super()._end_passes()
        self._begin_aggregation(None)

    def with_weight(self, state: Any) -> Any:
        """Return the state of a jitted step, which holds the variables, with what this pass needs.

        Args:
            state: as ``fit`` gives it: the variables of the optimizer are the third part.
        """
        trainable, others, of_optimizer, of_metrics = state
        *rest, weight = of_optimizer
        last = [jnp.asarray(self._weight, weight.dtype)]
        if self._aggregation is not None:
            *rest, control = rest
            last.insert(0, jnp.asarray(self._control, control.dtype))
        return trainable, others, [*rest, *last], of_metrics

    def _forgive(self, plain: Any) -> Forgiving:
        return _Step(plain, self)


class _Step(Forgiving):
    """Awaits the step: only then an operation that has failed says so."""

    training: Training

    def __call__(self, *arguments: Any) -> Any:
        state = self.training.with_weight(arguments[0])
        batches = iter([self.training.next_batch()])
        with self.training.ending_fit_on_errors(), self.training.guard():
            logs, state = self.plain(state, batches)
            jax.block_until_ready(state)
            self.logs = logs
        return self.logs, state
