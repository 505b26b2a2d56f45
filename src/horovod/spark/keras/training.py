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
from horovod._rank import context
from horovod.spark.common.progress import COMMIT_EVERY, Progress
from horovod.spark.common.training import gpu_index
from horovod.spark.keras.fit_callbacks import Commits, EpochEnd
from horovod.spark.keras.model_bytes import add_state, model_of, state_in, suffix_of
from horovod.spark.keras.schedule import Rate
from horovod.spark.keras.shaping import Shaping
from horovod.tensorflow.functions import broadcast_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import TrainingData
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

    In an elastic job it goes on when ranks come or go.

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
        if context.elastic_worker() is None:
            training.fit()
        else:
            hvd.elastic.run(training.fit)(training.state())
        return training.result() if hvd.rank() == 0 else None


@dataclass
class _Progress(Progress):
    """Beside what all frameworks have, the checkpoint.

    Attributes:
        epoch: the first that has not ended.
        written: the checkpoint that was written last, or from which the run goes on.
        best: how good the best checkpoint was, as its callback has it.
    """

    epoch: int = 0
    written: bytes | None = None
    best: Any = None


class _Training:
    """The model, the optimizer and the callbacks of a rank."""

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
        best = getattr(self._checkpoint, "best", None)
        self._progress = _Progress(0, history={}, best=best)
        self._has_logs = False

    def state(self) -> hvd.elastic.KerasState:
        """What goes on when ranks come or go."""
        return hvd.elastic.KerasState(self._model, progress=self._progress, batch=0)

    def fit(self, state: Any = None) -> None:
        """Trains the epochs that are left; collective.

        Args:
            state: of :meth:`state`, which is committed; None if ranks stay.
        """
        self._begin()
        task, progress = self._task, self._progress
        epochs = range(progress.epoch, max(progress.epoch, task.epochs))
        if not epochs:
            return
        if state is not None:
            progress.step = state.batch
        progress.divide(task.data.train.steps_of(hvd.size(), whole_batches=False))
        if state is not None:
            state.batch = progress.step
        shaping = Shaping(
            task.data,
            getattr(self._model, "inputs", None),
            getattr(self._model, "outputs", None),
            task.label_shapes,
            task.prefetch,
        )
        data = task.data.module_for(
            hvd.rank(),
            hvd.size(),
            epochs,
            whole_batches=False,
            steps_done=progress.step,
            make_dataset=shaping.dataset,
        )
        with data as module:
            task.data.check_marks(hvd.rank())
            self._model.fit(
                module.train_data(),
                steps_per_epoch=module.steps_per_epoch_train,
                epochs=epochs.stop,
                initial_epoch=epochs.start,
                validation_data=module.val_data() if module.has_val else None,
                validation_steps=module.steps_per_epoch_val if module.has_val else None,
                callbacks=self._callbacks(state),
                shuffle=False,  # the data has its order
                verbose=2 if task.data.verbose and hvd.rank() == 0 else 0,
            )

    def result(self) -> bytes:
        """The checkpoint that was written last."""
        written = self._progress.written
        if written is None:
            # The user's callback found nothing worth saving.
            path = self._folder / "last.keras"
            self._model.save(path)
            self._add_state(path, self._task.epochs - 1)
            written = path.read_bytes()
        return written

    def end_epoch(self, epoch: int, logs: Mapping[str, Any], has_saved: bool) -> None:
        """Notes what was measured, and stores what was saved.

        Args:
            epoch: that has ended.
            logs: averages over all ranks.
            has_saved: whether there is a new checkpoint.
        """
        progress = self._progress
        numbers = {name: value for name, value in logs.items() if np.ndim(value) == 0}
        for name, value in numbers.items():
            progress.history.setdefault(name, []).append(float(value))
        progress.epoch = epoch + 1
        progress.end_epoch()
        progress.best = getattr(self._checkpoint, "best", None)
        if has_saved:
            self._add_state(self._path, epoch)
            progress.written = written = self._path.read_bytes()
            if hvd.rank() == 0:
                self._task.run.save(written)
        if self._has_logs:
            self._task.run.store.sync_fn(self._task.run.run_id)(str(self._folder / _SYNCED))

    def _begin(self) -> None:
        """Lets all ranks train the same, from a checkpoint if there is one; collective."""
        progress = self._progress
        if progress.size:  # others have begun, whose state this rank has
            self._rate.scale(self._model.optimizer, progress.size)
            return
        progress.size = hvd.size()
        self._rate.scale(self._model.optimizer, progress.size)
        self._rate.begin(self._model.optimizer, 1.0)
        self._model.train_function = None  # it may have been compiled with another rate
        self._resume()

    def _resume(self) -> None:
        found = self._task.run.load() if hvd.rank() == 0 else None
        data: bytes | None = broadcast_object(found, root_rank=0, name="checkpoint")
        if data is not None:
            path = self._folder / f"resumed{suffix_of(data)}"
            path.write_bytes(data)
            state = state_in(path)
            self._task.run.check(state.get("run"))
            if state["epoch"] + 1 >= self._task.epochs and hvd.rank() == 0:
                self._task.run.say_nothing_is_left(self._task.epochs)
            self._model.load_weights(path)
            self._rate.resume(self._model.optimizer, state["learning_rate"])
            self._progress.history = state["history"]
            self._progress.epoch = state["epoch"] + 1
            self._progress.written = data

    def _add_state(self, path: Path, epoch: int) -> None:
        """Adds to a checkpoint what belongs to it beside model and optimizer."""
        rate = self._rate.for_one_rank(self._model.optimizer)
        history = self._progress.history
        run = self._task.run.described()
        state = {"epoch": epoch, "history": history, "learning_rate": rate, "run": run}
        add_state(path, state)

    def _callbacks(self, state: hvd.elastic.KerasState | None) -> list[Any]:
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
        if hvd.rank() == 0 or state is not None:
            self._checkpoint.filepath = str(self._path)
            self._checkpoint.best = self._progress.best
            found.append(self._checkpoint)
        if hvd.rank() == 0:
            found += self._boards()
        found.append(EpochEnd(self.end_epoch, self._path))
        if state is not None:
            commits = Commits(state, self._progress, COMMIT_EVERY)
            found += [hvd.elastic.UpdateBatchStateCallback(state), commits]
        return found

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


def _pin_gpu(use_gpu: bool) -> None:
    """Lets TensorFlow see the GPU of this rank, or none."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = [gpus[gpu_index(hvd.local_rank())]] if use_gpu else []
        tf.config.set_visible_devices(mine, "GPU")
        for gpu in mine:
            tf.config.experimental.set_memory_growth(gpu, True)
