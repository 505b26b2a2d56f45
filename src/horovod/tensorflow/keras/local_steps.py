"""Local steps with Keras 3 on TensorFlow, eagerly and in graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from horovod._keras.local_steps.backend import LocalStepsBackend
from horovod._keras.local_steps.optimizer import LocalStepsOptimizer
from horovod._keras.local_steps.outer_steps import OuterSteps
from horovod._rank import context
from horovod._rank.reduction import ReduceOp
from horovod._train import sync_check
from horovod._train.process_set import global_process_set, group_of, number_of
from horovod._train.sync_check import Array
from horovod.errors import ReplicasDivergedError
from horovod.tensorflow import reductions
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.rank_ops import is_member_op, set_rank_op, size_op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horovod._keras.reducing_optimizer import Wrapping


class TensorFlowLocalStepsOptimizer(LocalStepsOptimizer):
    """See :class:`horovod._keras.local_steps.optimizer.LocalStepsOptimizer`."""

    @as_written
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Takes a step by this rank's gradients, and exchanges changes if it is time."""
        super().apply(grads, trainable_variables)

    @as_written
    def synchronize(self) -> None:
        """Bring the variables of all ranks together now; all ranks must call this.

        Raises:
            UsageError: the optimizer has not been built yet.
            HorovodInternalError: an exchange failed.
        """
        super().synchronize()


class TensorFlowLocalSteps(LocalStepsBackend):
    """Exchanges in branches of the graph of a step."""

    def run_if(self, condition: Any, change: Callable[[], None], touched: Sequence[Any]) -> None:
        """Change variables if a condition is true when the step runs."""
        if tf.executing_eagerly():
            if bool(condition):
                change()
            return

        def changed() -> tf.Tensor:
            change()
            return tf.constant(1)

        tf.cond(condition, changed, lambda: tf.constant(0))

    def reduces(self) -> bool:
        """Whether there are others to exchange with; graphs outlive changes of elastic jobs."""
        return not tf.executing_eagerly() or super().reduces()

    def average(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Return the averages over the ranks; collective."""
        settings = self.settings
        averages = self._on_members(
            lambda: list(
                reductions.grouped_allreduce(
                    list(tensors), op=ReduceOp.AVERAGE, compression=settings.compression,
                    process_set=settings.process_set, name=name, ignore_name_scope=True,
                )
            ),
            lambda: [tf.identity(tensor) for tensor in tensors],
        )  # fmt: skip
        return list(averages) if isinstance(averages, list | tuple) else [averages]

    def compare(self, tensors: Sequence[Any], names: Sequence[str], name: str, what: str) -> Any:
        """Compare tensors between the ranks; collective."""
        return self._on_members(
            lambda: self._compare(tensors, names, name, what), lambda: tf.constant(0)
        )

    def _on_members(self, run: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        process_set = self.settings.process_set
        if tf.executing_eagerly() or process_set is global_process_set:
            return run()
        return tf.cond(is_member_op(process_set), run, otherwise)

    def _place(self) -> tuple[Any, Any]:
        """Return the place of this rank and the number of ranks, in a graph as they are then."""
        process_set = self.settings.process_set
        if tf.executing_eagerly():
            group = group_of(process_set)
            return group.rank, group.size
        number, job = number_of(process_set), context.current().number
        return set_rank_op(number, job), size_op(number, job=job)

    def _compare(self, tensors: Sequence[Any], names: Sequence[str], name: str, what: str) -> Any:
        process_set = self.settings.process_set

        def digests(*arrays: np.ndarray) -> np.ndarray:
            described = [
                Array(each, "", array.nbytes, array.tobytes)
                for each, array in zip(names, arrays, strict=True)
            ]
            found = [print_.digest for print_ in sync_check.fingerprints_of(described)]
            return np.frombuffer(b"".join(found), np.int64)

        def verdict(table: np.ndarray) -> Any:
            try:
                is_global = process_set is global_process_set
                ranks = range(len(table)) if is_global else process_set.declared_ranks
                sync_check.check_digests(names, table, ranks)
            except ReplicasDivergedError as error:
                raise ReplicasDivergedError(
                    f"{what}{error.message}", error.tensors, error.ranks
                ) from None
            return np.int32(0)

        if tf.executing_eagerly():
            own = tf.constant(digests(*(np.asarray(tensor) for tensor in tensors)))
        else:
            own = tf.numpy_function(digests, list(tensors), tf.int64)
            own = tf.reshape(own, (len(tensors),))
        # As a sum: a rank that has joined adds zeros, where a gather would miss its row.
        table = tf.one_hot(*self._place(), dtype=tf.int64)[:, None] * own[None, :]
        table = reductions.allreduce(
            table, op=ReduceOp.SUM, process_set=process_set, name=name, ignore_name_scope=True
        )
        if tf.executing_eagerly():
            return verdict(table.numpy())
        return tf.ensure_shape(tf.numpy_function(verdict, [table], tf.int32), ())


def begin(wrapping: Wrapping) -> tuple[OuterSteps, None]:
    """Make what brings the ranks of an optimizer together."""
    return OuterSteps(TensorFlowLocalSteps(wrapping.settings)), None
