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
from horovod.spark.common.epoch_loop import EpochLoop, RankTask
from horovod.spark.common.progress import Progress
from horovod.spark.common.training import gpu_index
from horovod.spark.keras.fit_callbacks import FollowLoop
from horovod.spark.keras.model_bytes import add_state, model_of, state_in, suffix_of
from horovod.spark.keras.schedule import Rate
from horovod.spark.keras.shaping import Shaping
from horovod.tensorflow.elastic.run import engine_errors
from horovod.tensorflow.elastic.training import weigh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from horovod.spark.common.datamodule import DataModule
    from horovod.spark.keras.model_bytes import OptimizerRecord

_SYNCED = "run"  # the folder whose content goes to that of the run after each epoch


@dataclass(frozen=True, kw_only=True)
class KerasTask(RankTask):
    """The task of a rank.

    Attributes:
        optimizer: with the learning rate for one rank.
        compiling: ``loss``, ``loss_weights`` and ``metrics``, for ``model.compile``.
        callbacks: the user's.
        checkpoint_callback: in place of ``keras.callbacks.ModelCheckpoint``, or None.
        custom_objects: what Keras does not know.
        label_shapes, prefetch: see :class:`Shaping`.
        floatx: the floating-point type of Keras.
    """

    optimizer: OptimizerRecord
    compiling: Mapping[str, Any]
    callbacks: Sequence[Any]
    checkpoint_callback: Any
    custom_objects: Mapping[str, Any]
    label_shapes: Sequence[Sequence[int]] | None
    prefetch: int
    floatx: str


def train(task: KerasTask) -> bytes | None:
    """Train on this rank; all ranks of the job call it.

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
        framework = _Training(task, Path(name))
        return EpochLoop(task, framework).train()


class _Training:
    """The model, the optimizer and the callbacks of a rank; see :class:`Framework`."""

    whole_batches = False

    def __init__(self, task: KerasTask, folder: Path) -> None:
        self._task = task
        self._folder = folder
        self._model = model_of(task.model, task.custom_objects, compiled=False)
        optimizer = task.optimizer.made(task.custom_objects)
        self._rate = Rate(optimizer)
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
        self._checkpoint = task.checkpoint_callback or keras.callbacks.ModelCheckpoint("x.keras")
        ending = ".weights.h5" if self._checkpoint.save_weights_only else ".keras"
        self._path = folder / f"checkpoint{ending}"
        self.progress = Progress(history={}, best=getattr(self._checkpoint, "best", None))
        self._shaping = Shaping(
            task.data,
            getattr(self._model, "inputs", None),
            getattr(self._model, "outputs", None),
            task.label_shapes,
            task.prefetch,
        )
        self.make_dataset = self._shaping.dataset
        self._has_logs = False
        self._weight: tf.Variable | None = None

    def state(self) -> hvd.elastic.KerasState:
        if self._task.passes == 1:  # a sum of several passes has one weight
            self._weight = tf.Variable(1.0, False, dtype=tf.float64, name="weight_of_rank")
            weigh(self._model.optimizer, self._weight)
        return hvd.elastic.KerasState(self._model, progress=self.progress)

    def translating(self) -> AbstractContextManager[object]:
        return engine_errors()

    def begin(self, checkpoint: bytes | None, check_run: Callable[[str | None], None]) -> None:
        self._rate.scale(self._model.optimizer, self.progress.size)
        self._rate.begin(self._model.optimizer, 1.0)
        self._model.train_function = None  # it may have been compiled with another rate
        if checkpoint is not None:
            path = self._folder / f"resumed{suffix_of(checkpoint)}"
            path.write_bytes(checkpoint)
            state = state_in(path)
            check_run(state.get("run"))
            self._model.load_weights(path)
            self._rate.resume(self._model.optimizer, state["learning_rate"])
            self.progress.history = state["history"]
            self.progress.epoch = state["epoch"] + 1
            self.progress.checkpoint = checkpoint

    def fit(self, loop: EpochLoop, module: DataModule) -> bool:
        self._rate.scale(self._model.optimizer, self.progress.size)  # also of a rank that has come
        self._model.fit(
            module.train_data(),
            steps_per_epoch=module.steps_per_epoch_train,
            epochs=loop.epochs.stop,
            initial_epoch=loop.epochs.start,
            validation_data=module.val_data() if module.has_val else None,
            validation_steps=module.steps_per_epoch_val if module.has_val else None,
            callbacks=self._callbacks(loop),
            shuffle=False,  # the data has its order
            verbose=2 if self._task.data.verbose and hvd.rank() == 0 else 0,
        )
        return bool(self._model.stop_training)

    def result(self) -> bytes:
        """Return the checkpoint that was written last."""
        written = self.progress.checkpoint
        if written is None:
            # The user's callback found nothing worth saving.
            path = self._folder / "last.keras"
            self._model.save(path)
            self._add_state(path, self._task.epochs - 1)
            written = path.read_bytes()
        return written

    def _weigh_step(self, loop: EpochLoop) -> None:
        """Let the gradients of the next step weigh as many rows as this rank has in it."""
        if self._weight is not None:
            division, size = loop.rest.division, hvd.size()
            total = division.total(loop.steps_here)
            self._weight.assign(1.0 if loop.is_full() else loop.counted() * size / total)

    def _end_epoch(self, epoch: int, logs: Mapping[str, Any], has_saved: bool) -> None:
        """Keep what was measured, and store what was saved.

        Args:
            epoch: that has ended.
            logs: averages over all ranks.
            has_saved: whether there is a new checkpoint.
        """
        progress = self.progress
        numbers = {name: value for name, value in logs.items() if np.ndim(value) == 0}
        for name, value in numbers.items():
            progress.history.setdefault(name, []).append(float(value))
        progress.best = getattr(self._checkpoint, "best", None)
        if has_saved:
            self._add_state(self._path, epoch)
            progress.checkpoint = written = self._path.read_bytes()
            if hvd.rank() == 0:
                self._task.run.save(written)
        if self._has_logs:
            self._task.run.store.sync_fn(self._task.run.run_id)(str(self._folder / _SYNCED))

    def _add_state(self, path: Path, epoch: int) -> None:
        """Adds to a checkpoint what belongs to it beside model and optimizer."""
        rate = self._rate.for_one_rank(self._model.optimizer)
        history = self.progress.history
        run = self._task.run.described()
        state = {"epoch": epoch, "history": history, "learning_rate": rate, "run": run}
        add_state(path, state)

    def _callbacks(self, loop: EpochLoop) -> list[keras.callbacks.Callback]:
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
        # In an elastic job, every rank may be the only one that is left.
        if hvd.rank() == 0 or loop.is_elastic:
            self._checkpoint.filepath = str(self._path)
            self._checkpoint.best = self.progress.best
            found.append(self._checkpoint)
        if hvd.rank() == 0:
            found += self._boards()
        following = FollowLoop(loop, self.progress, self._weigh_step, self._end_epoch, self._path)
        return [*found, following]

    def _boards(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks that write logs for TensorBoard, if the store keeps them."""
        logs = self._task.run.store.get_logs_path(self._task.run.run_id)
        boards = [
            callback
            for callback in self._task.callbacks
            if isinstance(callback, keras.callbacks.TensorBoard)
        ]
        if logs is None or importlib.util.find_spec("tensorboard") is None:
            return []
        boards = boards or [keras.callbacks.TensorBoard()]
        for board in boards:
            board.log_dir = str(self._folder / _SYNCED / self._task.run.store.get_logs_subdir())
        self._has_logs = True
        return boards


def _pin_gpu(use_gpu: bool) -> None:
    """Lets TensorFlow see the GPU of this rank, or none."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = [gpus[gpu_index(hvd.local_rank())]] if use_gpu else []
        tf.config.set_visible_devices(mine, "GPU")
        for gpu in mine:
            tf.config.experimental.set_memory_growth(gpu, True)
