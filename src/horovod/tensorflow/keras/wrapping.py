"""Wraps an optimizer of any Keras, so that it uses the gradients of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from horovod._keras.reducing_optimizer import (
    check_wrapping,
    share_state,
    wrapped_class,
)
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.gradient_reducer import GradientReducer
from horovod.tensorflow.keras import optimizer_keras2, optimizer_keras3
from horovod.tensorflow.keras_generation import check_optimizer, generation_of

if TYPE_CHECKING:
    from horovod._keras.reducing_optimizer import Wrapping
    from horovod.tensorflow.interface_types import Optimizer
    from horovod.tensorflow.reduction_settings import ReductionSettings


def begin(wrapping: Wrapping) -> tuple[GradientReducer, LocalGradientAggregationHelperEager | None]:
    """Make the reducer of an optimizer, and what adds its gradients up over several passes."""
    settings: ReductionSettings = wrapping.settings
    reducer = GradientReducer(settings, numbered=True)
    if wrapping.passes == 1:
        return reducer, None
    return reducer, LocalGradientAggregationHelperEager(
        wrapping.passes,
        reducer.reduce,
        settings.sparse_as_dense,
        wrapping.average_aggregated_gradients,
        settings.process_set,
        settings.scale_local_gradients,
    )


def wrap(optimizer: Optimizer, wrapping: Wrapping) -> Any:
    """Makes an instance of the same class, by name, that shares the optimizer's whole state.

    Args:
        optimizer: a Keras optimizer; use the result instead of it.
        wrapping: what to do.

    Returns:
        A :class:`ReducingOptimizer`.

    Raises:
        UsageError: the optimizer or the arguments are wrong.
    """
    keras = check_optimizer(optimizer)
    check_wrapping(optimizer, wrapping)
    module = optimizer_keras3 if generation_of(keras) >= 3 else optimizer_keras2
    module.refuse_inner(optimizer)
    if wrapping.shard_state:
        # Only now: it needs Keras 3.
        from horovod._keras.sharding.optimizer import wrap_in_shares
        from horovod.tensorflow.keras import shares

        wrapping = replace(wrapping, begin=shares.begin_sharding)
        return wrap_in_shares(shares.TensorFlowShardingOptimizer, optimizer, wrapping)
    added = module.reducing_class(optimizer)
    wrapped = share_state(optimizer, wrapped_class(added, type(optimizer), wrapping))
    wrapped._begin()
    return wrapped
