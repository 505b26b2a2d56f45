"""The training of a Lightning estimator on one rank."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from horovod.spark.lightning.legacy import as_module
from horovod.spark.lightning.library import is_module, library_of
from horovod.spark.lightning.strategy import make_strategy
from horovod.spark.torch.device import check_devices, device_of
from horovod.spark.torch.losses import Loss
from horovod.spark.torch.model_bytes import model_of
from horovod.spark.torch.plain import loaded, plain, saved
from horovod.spark.torch.shaping import Shaping, dtype_of, one_for_each, reshaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import TrainingData
    from horovod.spark.torch.model_bytes import OptimizerRecord

RUN = "horovod_run"
"""What in a checkpoint says what was trained."""
_WRITER = "TorchEstimator of Lightning"


@dataclass(frozen=True)
class LightningTask:
    """What a rank is to do; can be sent to it.

    Attributes:
        data: what it reads.
        run: where checkpoints go, and from where it goes on.
        model: as :func:`horovod.spark.torch.model_bytes.model_bytes` gives it.
        optimizer, loss, loss_weights: of a plain model; None for a LightningModule.
        callbacks: of the Trainer.
        input_shapes, label_shapes: of the columns, with -1 for the batch.
        compression, passes: of the distributed optimizers.
        epochs: how many there are, with those of the checkpoint.
        options: further arguments of the Trainer.
    """

    data: TrainingData
    run: RunFolder
    model: bytes
    optimizer: OptimizerRecord | None
    loss: Any
    loss_weights: Sequence[float] | None
    callbacks: Sequence[Any]
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    compression: Any
    passes: int
    epochs: int
    options: Mapping[str, Any]


def train(task: LightningTask) -> bytes | None:
    """Trains on this rank; all ranks of the job call it.

    Returns:
        On rank 0 the trained weights and what was logged last, as bytes; None on the others.
    """
    task.data.begin()
    hvd.init()
    model = model_of(task.model)
    library = library_of(model)
    if task.data.seed is not None:
        library.seed_everything(task.data.seed, verbose=False)
    with tempfile.TemporaryDirectory(prefix="hvd-lightning-") as name:
        training = _Training(task, library, model, Path(name))
        training.fit()
        return training.result() if hvd.rank() == 0 else None


class _Training:
    """The module and the Trainer of a rank."""

    def __init__(self, task: LightningTask, library: Any, model: Any, folder: Path) -> None:
        self._task = task
        self._library = library
        self._model = model
        self._folder = folder
        self._device = device_of(task.data.use_gpu)
        check_devices(self._device)
        self._module = model if is_module(model) else self._plain()
        self._best = next((each for each in task.callbacks if _is_checkpoint(library, each)), None)
        if self._best is not None:
            self._best.dirpath = str(folder / "best")
            self._best.filename = None
        self._trainer = library.Trainer(**self._options())
        self._metrics: dict[str, float] = {}

    def fit(self) -> None:
        """Trains the epochs that are left."""
        found = self._task.run.load() if hvd.rank() == 0 else None
        data = hvd.broadcast_object(found, root_rank=0, name="checkpoint")
        path, first = None, 0
        if data is not None:
            state = loaded(data, _WRITER)
            self._task.run.check(state.get(RUN))
            path = self._folder / "resumed.ckpt"
            path.write_bytes(data)
            first = state["epoch"] + 1
            if first >= self._task.epochs and hvd.rank() == 0:
                self._task.run.say_nothing_is_left(self._task.epochs)
        # What they hold is to be known before an epoch is trained.
        for each in self._task.callbacks:
            plain(each.state_dict(), f"the state of {type(each).__name__}")
        epochs = range(first, max(first, self._task.epochs))
        whole = self._task.data.module_for(hvd.rank(), hvd.size(), epochs, whole_batches=True)
        if isinstance(whole, self._library.LightningDataModule):
            self._task.data.check_marks(hvd.rank())
            self._trainer.fit(self._module, datamodule=whole, ckpt_path=path)
        else:
            with whole as module:
                self._task.data.check_marks(hvd.rank())
                val = self._loader(module.val_data, module.steps_per_epoch_val)
                self._trainer.fit(
                    self._module,
                    self._loader(module.train_data, module.steps_per_epoch_train),
                    val if module.has_val and _validates(self._module) else None,
                    ckpt_path=path,
                )
        self._metrics = _over_all_ranks(self._trainer.logged_metrics)

    def result(self) -> bytes:
        """The weights of the last epoch, or the best ones of a ModelCheckpoint of the user."""
        if self._best is not None and self._best.best_model_path:
            best = loaded(Path(self._best.best_model_path).read_bytes(), _WRITER)
            self._module.load_state_dict(best["state_dict"])
        state = {key: value.cpu() for key, value in self._model.state_dict().items()}
        return saved({"model": state, "metrics": self._metrics})

    def save(self) -> None:
        """Stores a checkpoint; collective."""
        path = self._folder / "last.ckpt"
        self._trainer.save_checkpoint(path)
        if hvd.rank() == 0:
            self._task.run.save(path.read_bytes())

    def described_run(self) -> str:
        """Return a description of what the run trains, for its checkpoint."""
        return self._task.run.described()

    def _options(self) -> dict[str, Any]:
        task = self._task
        compression = task.compression or hvd.Compression.none
        options = {
            "max_epochs": task.epochs,
            "accelerator": "gpu" if self._device.type == "cuda" else "cpu",
            "devices": 1,
            "strategy": make_strategy(self._library, self._device, compression, task.passes),
            "accumulate_grad_batches": task.passes,
            "callbacks": [*task.callbacks, _saving(self._library, self)],
            "enable_checkpointing": self._best is not None,
            "enable_progress_bar": task.data.verbose > 0 and hvd.rank() == 0,
            "enable_model_summary": task.data.verbose > 0,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            "default_root_dir": str(self._folder),
            **task.options,
        }
        return options

    def _plain(self) -> Any:
        task = self._task
        count = len(task.data.labels)
        weights = task.loss_weights or [1.0 / count] * count
        return as_module(
            self._library,
            self._model,
            record=task.optimizer,
            loss=Loss(
                one_for_each(task.loss, count, "loss"),
                one_for_each(weights, count, "loss_weights"),
            ),
            features=task.data.features,
            labels=task.data.labels,
            weights=task.data.weights,
        )

    def _loader(self, batches: Any, steps: int) -> _Loader:
        dtype = dtype_of(self._model)
        shaping = Shaping(self._task.data, dtype, torch.device("cpu"), self._task.input_shapes)
        return _Loader(batches, steps, shaping, self._task.label_shapes)


class _Loader:
    """Batches of an epoch after the other, as dicts of tensors."""

    def __init__(self, batches: Any, steps: int, shaping: Shaping, label_shapes: Any) -> None:
        self._batches = batches
        self._steps = steps
        self._shaping = shaping
        self._label_shapes = label_shapes
        self._running: Iterator[Any] | None = None

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if self._running is None:
            self._running = iter(self._batches())
        for columns in itertools.islice(self._running, self._steps):
            yield self._named(columns)

    def _named(self, columns: Any) -> dict[str, torch.Tensor]:
        data = self._shaping.data
        batch = self._shaping.batch(columns)
        labels = reshaped(batch.labels, self._label_shapes)
        named = dict(zip([*data.features, *data.labels], [*batch.inputs, *labels], strict=True))
        if data.weights is not None and batch.weights is not None:
            named[data.weights] = batch.weights
        return named


def _saving(library: Any, training: _Training) -> Any:
    """A callback that stores a checkpoint after each epoch."""

    def on_train_epoch_end(self: Any, trainer: Any, module: Any) -> None:
        training.save()

    def on_save_checkpoint(self: Any, trainer: Any, module: Any, checkpoint: Any) -> None:
        checkpoint[RUN] = training.described_run()

    methods = {"on_train_epoch_end": on_train_epoch_end, "on_save_checkpoint": on_save_checkpoint}
    return type("StoringCheckpoint", (library.Callback,), methods)()


def _is_checkpoint(library: Any, callback: Any) -> bool:
    return isinstance(callback, library.callbacks.ModelCheckpoint)


def _validates(module: Any) -> bool:
    return hasattr(module, "validation_step")


def _over_all_ranks(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What was logged last, averaged over the ranks; collective."""
    mine = {name: float(value) for name, value in metrics.items()}
    everyone = hvd.allgather_object(mine, name="metrics")
    return {
        name: sum(each.get(name, value) for each in everyone) / len(everyone)
        for name, value in mine.items()
    }
