"""Callbacks of ``model.fit`` that keep the ranks together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.group import ReduceOp
from horovod._train.objects import agree, broadcast_object
from horovod.errors import UsageError
from horovod.tensorflow.gradient_groups import variable_key
from horovod.tensorflow.keras.callback import CallbackOfAnyKeras, TrainingCallback, all_ranks
from horovod.tensorflow.keras.elastic_training import training_of
from horovod.tensorflow.keras.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from horovod.tensorflow.optimizer_state import build, variables_of
from horovod.tensorflow.placement import placed
from horovod.tensorflow.state import broadcast_variables

if TYPE_CHECKING:
    from horovod.tensorflow.interface_types import Logs, Variable

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(TrainingCallback):
    """Starts all ranks from the weights and the optimizer's state of one of them.

    It does so before the first batch if they exist on all ranks by then, otherwise after it. Beside
    ``hvd.elastic.Training``, which has done so, it does nothing.

    Args:
        root_rank: the rank to start from.
        device: where the broadcasts are placed; anywhere if empty; a GPU is passed over.
        local_variables: a variable or a list of variables of which each rank keeps its own.

    Raises:
        UsageError: something in ``local_variables`` is no variable.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Variable | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._asked = False
        self._local: set[Any] = set()
        listed = local_variables if isinstance(local_variables, list | tuple) else [local_variables]
        for variable in listed if local_variables is not None else []:
            self.register_local_var(variable)

    def register_local_var(self, var: Variable) -> None:
        """Lets each rank keep its own value of a variable.

        Raises:
            UsageError: it is no variable.
        """
        if not any(isinstance(v, tf.Variable) for v in (var, getattr(var, "value", None))):
            raise UsageError(f"{var!r} is no variable")
        self._local.add(variable_key(var))

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Broadcasts before the first batch if all ranks have something to start from."""
        if not self._asked and not self.broadcast_done and training_of(self.model) is None:
            self._asked = True
            if all_ranks(self._can_broadcast(), "BroadcastGlobalVariablesCallback"):
                self._broadcast()

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Broadcasts what the first batch has made."""
        self._broadcast()

    def _can_broadcast(self) -> bool:
        if self.model.built:
            build(self.model.optimizer, self.model.trainable_variables)
        return bool(self.model.built)

    def _broadcast(self) -> None:
        if self.broadcast_done or training_of(self.model) is not None:
            return
        self.broadcast_done = True
        # Not model.variables, which has the state of random numbers too: those are to differ.
        shared = [v for v in self.model.weights if variable_key(v) not in self._local]
        shared += variables_of(self.model.optimizer)
        with placed(self.device) if self.device else tf.name_scope("broadcast"):
            update = broadcast_variables(shared, self.root_rank)
        if update is not None:
            # In a graph of version 1, which Keras 2 has if eager execution is disabled.
            tf.compat.v1.keras.backend.get_session().run(update)


class MetricAverageCallback(TrainingCallback):
    """Averages the metrics of an epoch over the ranks.

    It must stand before callbacks that use metrics, such as ReduceLROnPlateau or TensorBoard.

    Args:
        device: unused; metrics are numbers on the CPU.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Replaces the values in ``logs``.

        Raises:
            HorovodInternalError: the ranks have different metrics, or the job failed.
        """
        training = training_of(self.model)
        if logs and training is None:
            _average(logs)
        elif logs and training is not None and training.ends_epoch_with_others:
            with training.guard():
                _average(logs)


def _average(logs: dict[str, Any]) -> None:
    names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
    _agree_on_names(names)
    values = np.array([float(logs[name]) for name in names])
    view = Buffer.from_array(values)
    context.global_group().allreduce(
        (view,), (view,), op=ReduceOp.AVERAGE, name="MetricAverageCallback", waits_next=True
    ).wait()
    logs.update(zip(names, values.tolist(), strict=True))


def _agree_on_names(names: list[str]) -> None:
    """Fails on all ranks if their metrics differ; otherwise some would be averaged with others."""
    group = context.global_group()
    of_root = broadcast_object(group, names, 0, "MetricAverageCallback.names")
    problem = "" if names == of_root else f"it has the metrics {names}, rank 0 has {of_root}"
    agree(group, problem, "MetricAverageCallback")


class BestModelCheckpoint(CallbackOfAnyKeras, tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keeps the best model so far; its ``filepath`` is set by who runs the training.

    Args:
        monitor: which metric says how good a model is.
        verbose: 1 tells when a model is saved.
        save_weights_only: save no model, only its weights.
        mode: min, max, or auto: what is good.
        save_freq: after each "epoch", or after this many batches.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        # Keras looks at how the name ends.
        any_name = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            any_name,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Looks whether there is a place to save to.

        Raises:
            UsageError: ``filepath`` has not been set.
        """
        if self.filepath is None:
            raise UsageError("BestModelCheckpoint: set its filepath before the training begins")
        super().on_train_begin(logs)
