"""The training of a Lightning estimator on one rank."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from horovod.spark.common.epoch_loop import EpochLoop, RankTask
from horovod.spark.common.progress import Progress
from horovod.spark.lightning.legacy import as_module
from horovod.spark.lightning.library import is_module, library_of
from horovod.spark.lightning.strategy import make_strategy
from horovod.spark.torch.device import check_devices, device_of
from horovod.spark.torch.losses import loss_of
from horovod.spark.torch.model_bytes import model_of
from horovod.spark.torch.plain import loaded, plain, saved
from horovod.spark.torch.shaping import Shaping, dtype_of, reshaped
from horovod.spark.torch.step_weights import StepWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from horovod.spark.common.datamodule import DataModule
    from horovod.spark.torch.model_bytes import OptimizerRecord
    from horovod.spark.torch.shaping import Columns

    Trainer = Any
    """That of one of the two packages."""

RUN = "horovod_run"
"""What in a checkpoint says what was trained."""
_WRITER = "TorchEstimator of Lightning"


@dataclass(frozen=True, kw_only=True)
class LightningTask(RankTask):
    """The task of a rank.

    Attributes:
        optimizer, loss, loss_weights: of a plain model; None for a LightningModule.
        callbacks: of the Trainer.
        input_shapes, label_shapes: of the columns, with -1 for the batch.
        options: further arguments of the Trainer.
    """

    optimizer: OptimizerRecord | None
    loss: Any
    loss_weights: Sequence[float] | None
    callbacks: Sequence[Any]
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    options: Mapping[str, Any]


def train(task: LightningTask) -> bytes | None:
    """Train on this rank; all ranks of the job call it.

    Returns:
        On rank 0 the trained weights and what was logged last, as bytes; None on the others.
    """
    task.data.begin()
    hvd.init()
    library = library_of(model_of(task.model))
    if task.data.seed is not None:
        library.seed_everything(task.data.seed, verbose=False)
    with tempfile.TemporaryDirectory(prefix="hvd-lightning-") as name:
        framework = _Training(task, library, Path(name))
        return EpochLoop(task, framework).train()


class _Training:
    """The module and the Trainer of a rank; see :class:`Framework`.

    A Trainer that a change has ended is not used again: the next one goes on with a new module,
    from the checkpoint of the last commit.
    """

    whole_batches = True

    def __init__(self, task: LightningTask, library: ModuleType, folder: Path) -> None:
        self.progress = Progress(history={})
        self._task = task
        self._library = library
        self._folder = folder
        self._path = folder / "last.ckpt"
        self._device = device_of(task.data.use_gpu)
        self._is_trained = False
        self._best = next(
            (callback for callback in task.callbacks if _is_checkpoint(library, callback)), None
        )
        if self._best is not None:
            self._best.dirpath = str(folder / "best")
            self._best.filename = None

    def state(self) -> hvd.elastic.TorchState:
        return hvd.elastic.TorchState(progress=self.progress)

    def translating(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self, checkpoint: bytes | None, check_run: Callable[[str | None], None]) -> None:
        if checkpoint is not None:
            state = loaded(checkpoint, _WRITER)
            check_run(state.get(RUN))
            self.progress.epoch = state["epoch"] + 1
            self.progress.checkpoint = checkpoint
        # What they hold is to be known before an epoch is trained.
        for callback in self._task.callbacks:
            plain(callback.state_dict(), f"the state of {type(callback).__name__}")

    def fit(self, loop: EpochLoop, module: DataModule) -> bool:
        check_devices(self._device)
        self._make_module()
        following = _following(self._library, self, loop)
        trainer = self._library.Trainer(**self._options(loop, following))
        path = None
        if self.progress.checkpoint is not None:
            path = self._folder / "resumed.ckpt"
            path.write_bytes(self.progress.checkpoint)
        if isinstance(module, self._library.LightningDataModule):
            trainer.fit(self._module, datamodule=module, ckpt_path=path)
        else:
            val = self._loader(module.val_data, module.steps_per_epoch_val)
            trainer.fit(
                self._module,
                self._loader(module.train_data, loop.rest.steps, loop.is_elastic),
                val if module.has_val and _validates(self._module) else None,
                ckpt_path=path,
            )
        self._is_trained = True
        self.progress.history = _over_all_ranks(trainer.logged_metrics)
        return following.has_ended or self.progress.epoch < loop.epochs.stop

    def result(self) -> bytes:
        """Return the weights of the last epoch, or the best ones of a ModelCheckpoint."""
        if not self._is_trained:
            self._make_module()
        best = None if self._best is None else self._best.best_model_path
        if best and Path(best).exists():
            self._load(Path(best).read_bytes())
        elif self.progress.checkpoint is not None and not self._is_trained:
            self._load(self.progress.checkpoint)
        state = {key: value.cpu() for key, value in self._model.state_dict().items()}
        return saved({"model": state, "metrics": self.progress.history})

    def save(self, trainer: Trainer, loop: EpochLoop) -> None:
        """Store a checkpoint of an epoch that has ended; collective."""
        trainer.save_checkpoint(self._path)
        if hvd.rank() == 0:
            self._task.run.save(self._path.read_bytes())
        if loop.is_elastic:
            self.progress.checkpoint = self._path.read_bytes()

    def commit(self, trainer: Trainer, loop: EpochLoop) -> None:
        """Commit within an epoch; collective."""
        trainer.save_checkpoint(self._path)
        state = loaded(self._path.read_bytes(), _WRITER)
        # For a Trainer that goes on, what is left is an epoch that has not begun.
        for counts in state["loops"]["fit_loop"]["epoch_progress"].values():
            counts.update(dict.fromkeys(counts, self.progress.epoch))
        self.progress.checkpoint = saved(state)
        loop.commit()

    def described_run(self) -> str:
        """Return a description of what the run trains, for its checkpoint."""
        return self._task.run.described()

    def _load(self, checkpoint: bytes) -> None:
        self._module.load_state_dict(loaded(checkpoint, _WRITER)["state_dict"])

    def _make_module(self) -> None:
        self._model = model_of(self._task.model)
        self._module = self._model if is_module(self._model) else self._plain()

    def _options(self, loop: EpochLoop, following: _FollowingMethods) -> dict[str, Any]:
        task = self._task
        strategy = make_strategy(
            self._library,
            self._device,
            task.compression or hvd.Compression.none,
            task.passes,
            scale=self.progress.size,
            saves_on_all_ranks=loop.is_elastic,
        )
        options = {
            "max_epochs": task.epochs,
            "accelerator": "gpu" if self._device.type == "cuda" else "cpu",
            "devices": 1,
            "strategy": strategy,
            "accumulate_grad_batches": task.passes,
            "callbacks": [*task.callbacks, following],
            "enable_checkpointing": self._best is not None,
            "enable_progress_bar": task.data.verbose > 0 and hvd.rank() == 0,
            "enable_model_summary": task.data.verbose > 0,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            "default_root_dir": str(self._folder),
            **task.options,
        }
        if loop.epochs.stop < task.epochs:
            options["max_epochs"] = loop.epochs.stop
        return options

    def _plain(self) -> Any:
        task = self._task
        return as_module(
            self._library,
            self._model,
            record=task.optimizer,
            loss=loss_of(task.loss, task.loss_weights, task.data.labels),
            features=task.data.features,
            labels=task.data.labels,
            weights=task.data.weights,
        )

    def _loader(
        self, batches: Callable[[], Iterator[Columns]], steps: int, twice: bool = False
    ) -> _Loader:
        dtype = dtype_of(self._model)
        shaping = Shaping(self._task.data, dtype, torch.device("cpu"), self._task.input_shapes)
        return _Loader(batches, steps, shaping, self._task.label_shapes, twice)


class _Loader:
    """Batches of an epoch after the other, as dicts of tensors.

    Args:
        batches: of all epochs.
        steps: of each epoch.
        shaping, label_shapes: make tensors of columns.
        twice: give a single row twice, as layers that normalize over a batch refuse it.
    """

    def __init__(
        self,
        batches: Callable[[], Iterator[Columns]],
        steps: int,
        shaping: Shaping,
        label_shapes: Sequence[Sequence[int]] | None,
        twice: bool,
    ) -> None:
        self._batches = batches
        self._steps = steps
        self._shaping = shaping
        self._label_shapes = label_shapes
        self._twice = twice
        self._running: Iterator[Columns] | None = None

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if self._running is None:
            self._running = iter(self._batches())
        for columns in itertools.islice(self._running, self._steps):
            yield self._named(columns)

    def _named(self, columns: Columns) -> dict[str, torch.Tensor]:
        data = self._shaping.data
        batch = self._shaping.batch(columns)
        if self._twice and batch.rows == 1 < data.train.batch_size:
            batch = batch.twice()
        labels = reshaped(batch.labels, self._label_shapes)
        named = dict(zip([*data.features, *data.labels], [*batch.inputs, *labels], strict=True))
        if data.weights is not None and batch.weights is not None:
            named[data.weights] = batch.weights
        return named


class _FollowingMethods:
    """The methods of the callback that counts steps and epochs, and commits them."""

    training: _Training
    loop: EpochLoop
    weights: StepWeights
    has_ended = False

    def on_train_start(self, trainer: Trainer, module: torch.nn.Module) -> None:
        """Weigh the steps of this Trainer."""
        self.weights = StepWeights(trainer.optimizers)

    def on_train_batch_start(self, trainer: Trainer, *args: object) -> None:
        """Weigh a step."""
        self.weights.before_step(self.loop)

    def on_train_batch_end(self, trainer: Trainer, *args: object) -> None:
        """Count a step."""
        self.loop.count_step()
        if self.loop.commit_is_due():
            self.training.commit(trainer, self.loop)

    def on_train_epoch_end(self, trainer: Trainer, module: torch.nn.Module) -> None:
        """Store a checkpoint."""
        self.has_ended = trainer.should_stop
        self.training.save(trainer, self.loop)
        self.loop.end_epoch(stops=self.has_ended)

    def on_save_checkpoint(
        self, trainer: Trainer, module: torch.nn.Module, checkpoint: dict[str, object]
    ) -> None:
        """Say what is trained."""
        checkpoint[RUN] = self.training.described_run()


def _following(library: ModuleType, training: _Training, loop: EpochLoop) -> _FollowingMethods:
    """Return a callback of a Lightning that follows the loop."""
    kind = type("FollowLoop", (_FollowingMethods, library.Callback), {})
    following: _FollowingMethods = kind()
    following.training, following.loop = training, loop
    return following


def _is_checkpoint(library: ModuleType, callback: object) -> bool:
    return isinstance(callback, library.callbacks.ModelCheckpoint)


def _validates(module: torch.nn.Module) -> bool:
    return hasattr(module, "validation_step")


def _over_all_ranks(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Average the metrics logged last over the ranks; collective."""
    mine = {name: float(value) for name, value in metrics.items()}
    everyone = hvd.allgather_object(mine, name="metrics")
    return {
        name: sum(each.get(name, value) for each in everyone) / len(everyone)
        for name, value in mine.items()
    }
