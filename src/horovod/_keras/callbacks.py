"""Callbacks of ``model.fit`` that keep the ranks together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._keras.callback import Logs, ModelCheckpoint, TrainingCallback, all_ranks
from horovod._keras.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from horovod._keras.seam import seam_of
from horovod._keras.sharding.whole import common_variables
from horovod._keras.which import keras_in_use, keras_of, kind_of
from horovod._native import Buffer
from horovod._rank import context
from horovod._train.objects import agree, broadcast_object
from horovod.errors import UsageError

if TYPE_CHECKING:
    import keras

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalStepsCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(TrainingCallback):
    """Starts all ranks from the weights and the optimizer's state of one of them.

    It does so before the first batch if they exist on all ranks by then, otherwise after it. Beside
    ``hvd.elastic.Training``, which has done so, it does nothing. Of an optimizer with
    ``shard_state=True``, each rank keeps its share of the state.

    Args:
        root_rank: the rank to start from.
        device: where TensorFlow places the broadcasts; anywhere if empty; a GPU is passed over.
            With Keras on JAX or PyTorch, the broadcast refuses it.
        local_variables: a variable or a list of variables of which each rank keeps its own.

    Raises:
        UsageError: something in ``local_variables`` is no variable.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: keras.Variable | None = None
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

    def register_local_var(self, var: keras.Variable) -> None:
        """Lets each rank keep its own value of a variable.

        Raises:
            UsageError: it is no variable.
        """
        seam = seam_of(keras_of(type(var)) or keras_in_use())
        if not seam.is_variable(var):
            raise UsageError(f"{var!r} is no variable")
        self._local.add(seam.key(var))

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Broadcasts before the first batch if all ranks have something to start from."""
        if not self._asked and not self._is_done():
            self._asked = True
            if all_ranks(self._can_broadcast(), "BroadcastGlobalVariablesCallback"):
                self._broadcast()

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Broadcasts what the first batch has made, and counts steps for those who watch."""
        context.count_step()
        self._broadcast()

    def _can_broadcast(self) -> bool:
        if self.model.built:
            self._seam.build(self.model.optimizer, self.model.trainable_variables)
        return bool(self.model.built)

    def _is_done(self) -> bool:
        return self.broadcast_done or self._seam.training_of(self.model) is not None

    def _broadcast(self) -> None:
        if self._is_done():
            return
        self.broadcast_done = True
        seam = self._seam
        seam.fetch_state(self.model)
        # Not model.variables, which has the state of random numbers too: those are to differ.
        shared = [v for v in self.model.weights if seam.key(v) not in self._local]
        optimizer = self.model.optimizer
        shared += common_variables(optimizer, seam.variables_of(optimizer), self.root_rank)
        seam.broadcast(shared, self.root_rank, self.device)


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
        training = self._seam.training_of(self.model)
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
        (view,), (view,), name="MetricAverageCallback", waits_next=True
    ).wait()
    logs.update(zip(names, values.tolist(), strict=True))


def _agree_on_names(names: list[str]) -> None:
    """Fails on all ranks if their metrics differ; otherwise some would be averaged with others."""
    group = context.global_group()
    of_root = broadcast_object(group, names, 0, "MetricAverageCallback.names")
    problem = "" if names == of_root else f"it has the metrics {names}, rank 0 has {of_root}"
    agree(group, problem, "MetricAverageCallback")


class LocalStepsCallback(TrainingCallback):
    """Brings the ranks together where a model with local steps is evaluated or saved.

    Optimizers of ``hvd.LocalSGD`` and ``hvd.DiLoCo`` leave other variables on each rank between two
    exchanges. This makes one more exchange before each validation, at the end of each epoch and of
    the training, unless no step was taken since the last one. It must stand before callbacks that
    save the model, and all ranks must have it.

    Raises:
        UsageError: when the training begins, if the model has another optimizer.
    """

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Looks whether the optimizer takes local steps."""
        optimizer = self.model.optimizer
        if not hasattr(optimizer, "get_outer_state"):
            raise UsageError(
                f"LocalStepsCallback: the model was compiled with {kind_of(optimizer)}, which has "
                "nothing to bring together; compile it with what hvd.LocalSGD or hvd.DiLoCo returns"
            )

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Lets all ranks evaluate the same trained variables."""
        self._synchronize()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Lets callbacks behind this one save the same trained variables."""
        self._synchronize()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Leaves all ranks the same trained variables."""
        self._synchronize()

    def _synchronize(self) -> None:
        self._seam.fetch_state(self.model)
        self.model.optimizer.synchronize()


class BestModelCheckpoint(ModelCheckpoint):
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
