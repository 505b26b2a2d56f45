"""The training of a TorchEstimator on one rank."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from horovod._rank import context
from horovod.errors import UsageError
from horovod.spark.common.constants import METRIC_PRINT_FREQUENCY
from horovod.spark.common.progress import COMMIT_EVERY, Progress
from horovod.spark.torch.device import check_devices, device_of
from horovod.spark.torch.losses import Loss
from horovod.spark.torch.measuring import Measuring, in_words
from horovod.spark.torch.model_bytes import model_of
from horovod.spark.torch.plain import loaded, saved
from horovod.spark.torch.shaping import Shaping, dtype_of, one_for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import TrainingData
    from horovod.spark.torch.model_bytes import OptimizerRecord


@dataclass(frozen=True)
class TorchTask:
    """What a rank is to do; can be sent to it.

    Attributes:
        data: what it reads.
        run: where checkpoints go, and from where it goes on.
        model: as :func:`model_bytes` gives it.
        optimizer: with the learning rates for one rank.
        loss, loss_constructors: what makes the loss; one of them is None.
        loss_weights: one for each label, or None.
        metrics: groups of functions.
        input_shapes, label_shapes: see :class:`Shaping`.
        compression, passes: of the distributed optimizer.
        epochs: how many there are, with those of the checkpoint.
        minibatch: a step in place of :func:`_step`, or None.
    """

    data: TrainingData
    run: RunFolder
    model: bytes
    optimizer: OptimizerRecord
    loss: Any
    loss_constructors: Any
    loss_weights: Sequence[float] | None
    metrics: Sequence[Sequence[Callable[..., Any]]]
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    compression: Any
    passes: int
    epochs: int
    minibatch: Callable[..., tuple[Any, torch.Tensor]] | None


def train(task: TorchTask) -> bytes | None:
    """Trains on this rank; all ranks of the job call it.

    In an elastic job it goes on when ranks come or go.

    Returns:
        The last checkpoint on rank 0, None on the others.
    """
    task.data.begin()
    if task.data.seed is not None:
        torch.manual_seed(task.data.seed)
    hvd.init()
    training = _Training(task)
    if context.elastic_worker() is None:
        training.fit()
    else:
        hvd.elastic.run(training.fit)(training.state())
    return training.checkpoint() if hvd.rank() == 0 else None


class _Training:
    """The model, the optimizer and the history of a rank."""

    def __init__(self, task: TorchTask) -> None:
        self._task = task
        self._device = device_of(task.data.use_gpu)
        self._model = model_of(task.model).to(self._device)
        self._optimizer = hvd.DistributedOptimizer(
            task.optimizer.bound_to(self._model),
            named_parameters=self._model.named_parameters(),
            backward_passes_per_step=task.passes,
            compression=task.compression or hvd.Compression.none,
        )
        self._progress = Progress(0, history=[])
        self._shaping = Shaping(
            task.data, dtype_of(self._model), self._device, task.input_shapes, task.label_shapes
        )
        self._loss = self._make_loss()

    def state(self) -> hvd.elastic.TorchState:
        """What goes on when ranks come or go."""
        return hvd.elastic.TorchState(self._model, self._optimizer, progress=self._progress)

    def fit(self, state: Any = None) -> None:
        """Trains the epochs that are left; collective.

        Args:
            state: of :meth:`state`, which is committed; None if ranks stay.
        """
        self._begin()
        task, progress = self._task, self._progress
        epochs = range(len(progress.history), task.epochs)
        progress.divide(task.data.train.steps_of(hvd.size(), whole_batches=True), task.passes)
        data = task.data.module_for(
            hvd.rank(), hvd.size(), epochs, whole_batches=True, steps_done=progress.step
        )
        with data as module:
            task.data.check_marks(hvd.rank())
            batches = iter(module.train_data())
            validation = iter(module.val_data()) if module.has_val else None
            for epoch in epochs:
                left = itertools.islice(batches, module.steps_per_epoch_train - progress.step)
                self._train_epoch(epoch, left, state)
                if validation is not None:
                    self._validate(itertools.islice(validation, module.steps_per_epoch_val))
                self._end_epoch(epoch)
                if state is not None:
                    state.commit()

    def checkpoint(self) -> bytes:
        """History and state of model and optimizer, with the learning rates for one rank."""
        optimizer = self._optimizer.state_dict()
        optimizer["param_groups"] = [dict(group) for group in optimizer["param_groups"]]
        _multiply_rates(optimizer["param_groups"], 1 / self._progress.size)
        return saved(
            {
                "model": self._model.state_dict(),
                "optimizer": optimizer,
                "history": json.dumps(self._progress.history),
                "run": self._task.run.described(),
            }
        )

    def _begin(self) -> None:
        """Lets all ranks train the same, from a checkpoint if there is one; collective."""
        check_devices(self._device)
        if self._progress.size:
            return  # others have begun, whose state this rank has
        self._resume()
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        self._progress.size = hvd.size()
        _multiply_rates(self._optimizer.param_groups, hvd.size())

    def _resume(self) -> None:
        found = self._task.run.load() if hvd.rank() == 0 else None
        data = hvd.broadcast_object(found, root_rank=0, name="checkpoint")
        if data is not None:
            state = checkpoint_of(data)
            self._task.run.check(state["run"])
            if len(state["history"]) >= self._task.epochs and hvd.rank() == 0:
                self._task.run.say_nothing_is_left(self._task.epochs)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._progress.history = state["history"]

    def _train_epoch(
        self, epoch: int, batches: Iterator[Any], state: hvd.elastic.TorchState | None
    ) -> None:
        """Takes the steps of an epoch that are left."""
        task, progress = self._task, self._progress
        self._model.train()
        self._optimizer.zero_grad()
        measuring = Measuring(task.metrics, task.data.labels, progress.measured)
        done = progress.step
        for index, columns in enumerate(batches, start=done):
            self._take_step(index, columns, measuring)
            self._tell(epoch, index, measuring)
            done = index + 1
            if state is not None and done < progress.steps and done % self._commit_every() == 0:
                progress.step, progress.measured = done, measuring.gather("commit")
                state.commit()
        if task.minibatch is None and done % task.passes:
            self._optimizer.step()
        progress.history.append({"epoch": epoch, "train": measuring.over_all_ranks("train")})
        progress.end_epoch()

    def _take_step(self, index: int, columns: Any, measuring: Measuring) -> None:
        task = self._task
        step = task.minibatch or _step
        batch = self._shaping.batch(columns)
        outputs, loss = step(
            self._model,
            self._optimizer,
            self._shaping.outputs_and_labels,
            self._loss,
            batch.inputs,
            batch.labels,
            batch.weights,
            task.passes,
            index,
        )
        outputs, labels = self._shaping.outputs_and_labels(outputs, batch.labels)
        measuring.add(loss, outputs, labels, batch.rows)

    def _commit_every(self) -> int:
        """How many batches there are between commits: whole steps of the optimizer."""
        return COMMIT_EVERY * self._task.passes

    @torch.no_grad()
    def _validate(self, batches: Iterator[Any]) -> None:
        """Measures the model, and adds that to the history of the epoch."""
        self._model.eval()
        measuring = Measuring(self._task.metrics, self._task.data.labels)
        for columns in batches:
            batch = self._shaping.batch(columns)
            outputs, labels = self._shaping.outputs_and_labels(
                self._model(*batch.inputs), batch.labels
            )
            loss = self._loss(outputs, labels, batch.weights)
            measuring.add(loss, outputs, labels, batch.rows)
        self._progress.history[-1]["validation"] = measuring.over_all_ranks("validation")

    def _end_epoch(self, epoch: int) -> None:
        """Saves a checkpoint, and tells of the epoch."""
        if hvd.rank() != 0:
            return
        self._task.run.save(self.checkpoint())
        if self._task.data.verbose:
            last = self._progress.history[-1]
            parts = [
                f"{part} {in_words(last[part])}" for part in ("train", "validation") if part in last
            ]
            print(f"epoch {epoch + 1}/{self._task.epochs}: {'; '.join(parts)}", flush=True)

    def _make_loss(self) -> Loss:
        task = self._task
        count = len(task.data.labels)
        weights = task.loss_weights or [1.0 / count] * count
        if task.loss_constructors is None:
            functions = one_for_each(task.loss, count, "loss")
        else:
            known = {"model": self._model, "optimizer": self._optimizer, "torch": torch, "hvd": hvd}
            functions = [
                make(**known)
                for make in one_for_each(task.loss_constructors, count, "loss_constructors")
            ]
        return Loss(functions, one_for_each(weights, count, "loss_weights"))

    def _tell(self, epoch: int, index: int, measuring: Measuring) -> None:
        if self._task.data.verbose > 1 and hvd.rank() == 0 and index % METRIC_PRINT_FREQUENCY == 0:
            loss = measuring.loss_here()
            print(f"epoch {epoch + 1}, batch {index}: loss on rank 0 {loss:.6g}", flush=True)


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    transform_outputs: Callable[..., Any],
    loss_fn: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    labels: Sequence[torch.Tensor],
    sample_weights: torch.Tensor | None,
    backward_passes_per_step: int,
    batch_idx: int,
) -> tuple[Any, torch.Tensor]:
    """A batch of the training: what ``train_minibatch_fn`` takes the place of.

    The gradients of ``backward_passes_per_step`` batches make one step; at the end of an epoch,
    fewer do.
    """
    if batch_idx % backward_passes_per_step == 0:
        optimizer.zero_grad()
    outputs = model(*inputs)
    listed, fitted = transform_outputs(outputs, labels)
    loss = loss_fn(listed, fitted, sample_weights)
    (loss / backward_passes_per_step).backward()  # type: ignore[no-untyped-call]
    if (batch_idx + 1) % backward_passes_per_step == 0:
        optimizer.step()
    return outputs, loss.detach()


def checkpoint_of(data: bytes) -> dict[str, Any]:
    """What is in a checkpoint, on the CPU.

    Raises:
        UsageError: it is no checkpoint of a TorchEstimator.
    """
    state = loaded(data, "TorchEstimator")
    if not {"model", "optimizer", "history"} <= set(state):
        raise UsageError(
            "the run has a checkpoint that no TorchEstimator wrote; use another run_id"
        )
    return {"run": None, **state, "history": json.loads(state["history"])}


def _multiply_rates(groups: Sequence[dict[str, Any]], factor: float) -> None:
    for group in groups:
        if "lr" in group:
            group["lr"] = group["lr"] * factor
