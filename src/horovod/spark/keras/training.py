"""The training of a KerasEstimator on one rank."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow.keras as hvd
from horovod.spark.common.training import gpu_index
from horovod.spark.keras.model_bytes import add_state, model_of, state_in, suffix_of
from horovod.spark.keras.schedule import ScaledSchedule
from horovod.spark.keras.shaping import Shaping
from horovod.tensorflow.functions import broadcast_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.spark.common.training import RunFolder, TrainingData
    from horovod.spark.keras.model_bytes import OptimizerRecord

_SYNCED = "run"  # the folder whose content goes to that of the run after each epoch


@dataclass(frozen=True)
class KerasTask:
    """What a rank is to do; can be sent to it.

    Attributes:
        data: what it reads.
        run: where checkpoints go, and from where it goes on.
        model: as :func:`model_bytes` gives it.
        optimizer: with the learning rate for one rank.
        compiling: ``loss``, ``loss_weights`` and ``metrics``, for ``model.compile``.
        callbacks: the user's.
        checkpoint_callback: in place of ``keras.callbacks.ModelCheckpoint``, or None.
        custom_objects: what Keras does not know.
        compression, passes: of the distributed optimizer.
        label_shapes, prefetch: see :class:`Shaping`.
        epochs: how many there are, with those of the checkpoint.
        floatx: the floating-point type of Keras.
    """

    data: TrainingData
    run: RunFolder
    model: bytes
    optimizer: OptimizerRecord
    compiling: Mapping[str, Any]
    callbacks: Sequence[Any]
    checkpoint_callback: Any
    custom_objects: Mapping[str, Any]
    compression: Any
    passes: int
    label_shapes: Sequence[Sequence[int]] | None
    prefetch: int
    epochs: int
    floatx: str


def train(task: KerasTask) -> bytes | None:
    """Trains on this rank; all ranks of the job call it.

    Returns:
        The checkpoint that was written last on rank 0, None on the others.
    """
    task.data.begin()
    keras.config.set_floatx(task.floatx)
    if task.data.seed is not None:
        keras.utils.set_random_seed(task.data.seed)
    hvd.init()
    _pin_gpu(task.data.use_gpu)
    with tempfile.TemporaryDirectory(prefix="hvd-keras-") as name:
        training = _Training(task, Path(name))
        training.fit()
        return training.result() if hvd.rank() == 0 else None


class _Training:
    """The model, the optimizer and the callbacks of a rank."""

    def __init__(self, task: KerasTask, folder: Path) -> None:
        self._task = task
        self._folder = folder
        self._model = model_of(task.model, task.custom_objects, compiled=False)
        optimizer = task.optimizer.made(task.custom_objects)
        self._rate = Rate(optimizer, hvd.size())
        self._model.compile(
            optimizer=hvd.DistributedOptimizer(
                optimizer,
                compression=task.compression or hvd.Compression.none,
                backward_passes_per_step=task.passes,
                average_aggregated_gradients=True,
            ),
            **task.compiling,
        )
        task.optimizer.restore(self._model.optimizer, self._model.trainable_variables)
        self._rate.begin(self._model.optimizer, 1.0)
        self._history: dict[str, list[float]] = {}
        self._first_epoch = 0
        self._written: bytes | None = None
        self._has_logs = False
        self._resumed = self._resume()

    def fit(self) -> None:
        """Trains the epochs that are left."""
        task = self._task
        epochs = range(self._first_epoch, max(self._first_epoch, task.epochs))
        if not epochs:
            return
        shaping = Shaping(
            task.data,
            getattr(self._model, "inputs", None),
            getattr(self._model, "outputs", None),
            task.label_shapes,
            task.prefetch,
        )
        data = task.data.module_for(
            hvd.rank(), hvd.size(), epochs, whole_batches=False, make_dataset=shaping.dataset
        )
        with data as module:
            self._model.fit(
                module.train_data(),
                steps_per_epoch=module.steps_per_epoch_train,
                epochs=epochs.stop,
                initial_epoch=epochs.start,
                validation_data=module.val_data() if module.has_val else None,
                validation_steps=module.steps_per_epoch_val if module.has_val else None,
                callbacks=self._callbacks(),
                shuffle=False,  # the data has its order
                verbose=2 if task.data.verbose and hvd.rank() == 0 else 0,
            )

    def result(self) -> bytes:
        """The checkpoint that was written last."""
        written = self._written or self._resumed
        if written is None:
            # The user's callback found nothing worth saving.
            path = self._folder / "last.keras"
            self._model.save(path)
            add_state(path, self.state(self._task.epochs - 1))
            written = path.read_bytes()
        return written

    def state(self, epoch: int) -> dict[str, Any]:
        """What belongs to a checkpoint beside model and optimizer."""
        rate = self._rate.for_one_rank(self._model.optimizer)
        return {"epoch": epoch, "history": self._history, "learning_rate": rate}

    def end_epoch(self, epoch: int, logs: Mapping[str, Any], path: Path | None) -> None:
        """Notes what was measured, and stores what was saved.

        Args:
            epoch: that has ended.
            logs: averages over all ranks.
            path: a new checkpoint, if there is one.
        """
        numbers = {name: value for name, value in logs.items() if np.ndim(value) == 0}
        for name, value in numbers.items():
            self._history.setdefault(name, []).append(float(value))
        if path is not None:
            add_state(path, self.state(epoch))
            self._written = path.read_bytes()
            self._task.run.save(self._written)
        if self._has_logs:
            self._task.run.store.sync_fn(self._task.run.run_id)(str(self._folder / _SYNCED))

    def _resume(self) -> bytes | None:
        found = self._task.run.load() if hvd.rank() == 0 else None
        data: bytes | None = broadcast_object(found, root_rank=0, name="checkpoint")
        if data is not None:
            path = self._folder / f"resumed{suffix_of(data)}"
            path.write_bytes(data)
            state = state_in(path)
            self._model.load_weights(path)
            self._rate.resume(self._model.optimizer, state["learning_rate"])
            self._history = state["history"]
            self._first_epoch = state["epoch"] + 1
        return data

    def _callbacks(self) -> list[Any]:
        found = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ]
        for callback in self._task.callbacks:
            if isinstance(callback, hvd.callbacks.LearningRateScheduleCallback):
                callback.initial_lr = self._rate.scaled or callback.initial_lr
            if isinstance(callback, keras.callbacks.TensorBoard):
                continue
            found.append(callback)
        if hvd.rank() != 0:
            return found
        checkpoint = self._task.checkpoint_callback or keras.callbacks.ModelCheckpoint("x.keras")
        ending = ".weights.h5" if checkpoint.save_weights_only else ".keras"
        checkpoint.filepath = str(self._folder / f"checkpoint{ending}")
        return [*found, checkpoint, *self._boards(), _EpochEnd(self, Path(checkpoint.filepath))]

    def _boards(self) -> list[Any]:
        """What writes logs for TensorBoard, if the store keeps them."""
        logs = self._task.run.store.get_logs_path(self._task.run.run_id)
        boards = [
            each for each in self._task.callbacks if isinstance(each, keras.callbacks.TensorBoard)
        ]
        if logs is None or importlib.util.find_spec("tensorboard") is None:
            return []
        boards = boards or [keras.callbacks.TensorBoard()]
        for board in boards:
            board.log_dir = str(self._folder / _SYNCED / self._task.run.store.get_logs_subdir())
        self._has_logs = True
        return boards


class _EpochEnd(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the training of rank 0 of each epoch, and of the checkpoint that is new in it."""

    def __init__(self, training: _Training, path: Path) -> None:
        super().__init__()
        self._training = training
        self._path = path
        self._seen: Any = None

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Looks whether there is a new file."""
        now = None
        if self._path.exists():
            stat = self._path.stat()
            now = stat.st_ino, stat.st_mtime_ns
        is_new = now is not None and now != self._seen
        self._training.end_epoch(epoch, logs or {}, self._path if is_new else None)
        if is_new:
            stat = self._path.stat()
            self._seen = stat.st_ino, stat.st_mtime_ns


class Rate:
    """The learning rate for one rank and that for all, which is so many times as large.

    Args:
        optimizer: not built yet; one with a schedule gets a scaled one.
        size: number of ranks.
    """

    def __init__(self, optimizer: Any, size: int) -> None:
        self._base: float | None = None
        self.scaled: float | None = None
        schedule = getattr(optimizer, "_learning_rate", None)
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            optimizer.learning_rate = ScaledSchedule(schedule, size)
        else:
            self._base = float(optimizer.learning_rate)
            self.scaled = self._base * size

    def begin(self, optimizer: Any, factor: float) -> None:
        """Sets the rate for all ranks, times a factor by which it has changed in the training."""
        if self.scaled is not None:
            optimizer.learning_rate = self.scaled * factor

    def resume(self, optimizer: Any, saved: float | None) -> None:
        """Goes on with a rate for one rank that was saved."""
        if self._base and saved is not None:
            self.begin(optimizer, saved / self._base)

    def for_one_rank(self, optimizer: Any) -> float | None:
        """What the rate is now, for one rank; None if it follows a schedule."""
        if self._base is None or not self.scaled:
            return self._base
        # Exactly what it was, if nothing has changed it.
        now = float(optimizer.learning_rate)
        is_same = abs(now - self.scaled) <= 1e-6 * abs(self.scaled)
        return self._base if is_same else self._base * (now / self.scaled)


def _pin_gpu(use_gpu: bool) -> None:
    """Lets TensorFlow see the GPU of this rank, or none."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = [gpus[gpu_index(hvd.local_rank())]] if use_gpu else []
        tf.config.set_visible_devices(mine, "GPU")
        for gpu in mine:
            tf.config.experimental.set_memory_growth(gpu, True)
