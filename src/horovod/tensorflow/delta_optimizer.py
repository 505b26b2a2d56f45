"""Adasum over what steps change: each rank steps by its own gradients, then steps are combined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.gradients import check_passes
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Adasum
from horovod.errors import UsageError
from horovod.tensorflow.reductions import allreduce

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod._train.compression import CompressorLike
    from horovod.tensorflow.interface_types import Pair, V1Optimizer, Variable

_START = "delta_start"


class DistributedDeltaOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of tf.compat.v1 whose steps are combined by Adasum.

    Each pass takes the wrapped optimizer's step by this rank's own gradients. After
    ``backward_passes_per_step`` of them, what they have changed in each variable since the last
    exchange is combined over the ranks, and becomes the change of the variable on all ranks.

    Args:
        optimizer: any of tf.compat.v1.train.
        name: of this optimizer; ``DistributedDelta<Class>`` if None.
        use_locking: as of the base class.
        device_dense, device_sparse: where the reductions are placed; empty leaves it to TensorFlow.
        compression: how the changes travel; None for as they are.
        backward_passes_per_step: steps between two exchanges, at least 1.
        process_set: the ranks that take part.

    Raises:
        UsageError: ``backward_passes_per_step`` is below 1, or apply_gradients is called eagerly.
    """

    def __init__(
        self,
        optimizer: V1Optimizer,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: CompressorLike | None = None,
        backward_passes_per_step: int = 1,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            name=name or f"DistributedDelta{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer
        self._passes = check_passes(backward_passes_per_step)
        self._process_set = process_set
        self._options: dict[str, Any] = {
            "device_dense": device_dense,
            "device_sparse": device_sparse,
        }
        if compression is not None:
            self._options["compression"] = compression
        self._step_count: Any = None

    def compute_gradients(self, *args: object, **kwargs: object) -> list[tuple[Any, Any]]:
        """This rank's gradients, as of the wrapped optimizer."""
        pairs: list[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """Takes the wrapped optimizer's step; combines all ranks' steps when it is time.

        Args:
            grads_and_vars: pairs of gradient and variable.
            global_step: a variable to count in, or None.
            name: of the operation.

        Returns:
            The operation to run.
        """
        if tf.executing_eagerly():
            raise UsageError(
                "an optimizer of tf.compat.v1 with op=Adasum works in graphs only; use "
                "hvd.DistributedGradientTape(tape, op=hvd.Adasum) in eager mode"
            )
        pairs = list(grads_and_vars)
        trained = [var for grad, var in pairs if grad is not None]
        starts = [self._start_of(var) for var in trained]
        count = self._make_step_count().read_value() + 1
        is_first = tf.equal((count - 1) % self._passes, 0)
        is_last = tf.equal(count % self._passes, 0)
        # What was assigned to variables since the last exchange, as by a broadcast, is no change.
        olds = [
            tf.where(is_first, tf.convert_to_tensor(var), tf.convert_to_tensor(start))
            for var, start in zip(trained, starts, strict=True)
        ]
        with tf.control_dependencies([count, *olds]):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step)
        with tf.control_dependencies([stepped]):
            updates = [self._step_count.assign(count)]
            news = [tf.identity(var.read_value()) for var in trained]
        for index, (var, start) in enumerate(zip(trained, starts, strict=True)):
            name_of_change = f"{index}.{var.op.name}"
            combined = self._combine(is_last, olds[index], news[index], name_of_change)
            updates += [
                var.assign(combined),
                start.assign(tf.where(is_last, combined, olds[index])),
            ]
        return tf.group(*updates, name=name or f"update_{self.get_name()}")

    def _combine(self, is_last: tf.Tensor, old: tf.Tensor, new: tf.Tensor, name: str) -> tf.Tensor:
        """The variable's value after the exchange, if it is time for one."""

        def exchange() -> tf.Tensor:
            change = allreduce(
                new - old,
                op=Adasum,
                name=f"{self.get_name()}_Allreduce/{name.replace('/', '.')}",
                process_set=self._process_set,
                **self._options,
            )
            return old + change

        if self._passes == 1:
            return exchange()
        return tf.cond(is_last, exchange, lambda: tf.identity(new))

    def _start_of(self, var: Any) -> Any:
        """The slot that holds a variable as it was after the last exchange."""
        with tf.init_scope():
            return self._zeros_slot(var, _START, self.get_name())

    def _make_step_count(self) -> Any:
        if self._step_count is None:
            with tf.compat.v1.variable_scope(None, default_name=self.get_name()):
                self._step_count = tf.compat.v1.get_variable(
                    "step_count",
                    shape=(),
                    dtype=tf.int32,
                    initializer=tf.compat.v1.zeros_initializer(),
                    trainable=False,
                    use_resource=True,
                )
        return self._step_count

    def get_slot(self, var: Variable, name: str) -> Any:
        """A slot of the wrapped optimizer, or ``delta_start``."""
        return (
            super().get_slot(var, name) if name == _START else self._optimizer.get_slot(var, name)
        )

    def get_slot_names(self) -> list[str]:
        """The names of the slots of the wrapped optimizer, and ``delta_start``."""
        return sorted({*super().get_slot_names(), *self._optimizer.get_slot_names()})

    def variables(self) -> list[Any]:
        """The variables of the wrapped optimizer and those of this one."""
        counted = [] if self._step_count is None else [self._step_count]
        return [*self._optimizer.variables(), *super().variables(), *counted]
