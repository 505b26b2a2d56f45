"""The exchange of parts with Keras 3 on TensorFlow, eagerly and in graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._keras.sharding.exchange import GroupedExchange
from horovod._keras.sharding.optimizer import ShardingOptimizer, ShardReducer
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.process_set import group_of
from horovod.errors import UsageError
from horovod.tensorflow import exchanges, reductions
from horovod.tensorflow.autograph import as_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horovod._keras.reducing_optimizer import Wrapping
    from horovod.tensorflow.reduction_settings import ReductionSettings

_numbers = NameNumbers()


class TensorFlowShardingOptimizer(ShardingOptimizer):
    """See :class:`horovod._keras.sharding.optimizer.ShardingOptimizer`."""

    @as_written
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Steps this rank's elements by the gradients of all ranks, then gathers the variables."""
        super().apply(grads, trainable_variables)


class _Operations:
    """The collectives of TensorFlow with the arguments of the shared code."""

    reshape = staticmethod(tf.reshape)
    grouped_allgather = staticmethod(exchanges.grouped_allgather)
    allreduce = staticmethod(reductions.allreduce)

    @staticmethod
    def grouped_reducescatter(tensors: Sequence[tf.Tensor], **options: Any) -> Sequence[tf.Tensor]:
        return reductions.grouped_reducescatter(tensors, **options)


def begin_sharding(wrapping: Wrapping) -> tuple[ShardReducer, None]:
    """Make what exchanges the parts of an optimizer."""
    settings: ReductionSettings = wrapping.settings
    operation = f"{settings.name}_Shares"
    number = JobNumber(_numbers, [operation])

    def prefix() -> str:
        return f"{operation}.{number.within(group_of(settings.process_set))}"

    exchange = GroupedExchange(_Operations, settings, prefix, _dense_of(settings))
    return ShardReducer(exchange, settings), None


def _dense_of(settings: ReductionSettings) -> Callable[[Any, Any], Any]:
    def dense(gradient: Any, variable: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not settings.sparse_as_dense:
            raise UsageError(
                f"the gradient of {variable.path} is sparse; with shard_state=True it is sent with "
                "sparse_as_dense=True only"
            )
        return tf.convert_to_tensor(gradient)

    return dense
