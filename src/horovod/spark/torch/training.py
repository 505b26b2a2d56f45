"""The training of a TorchEstimator on one rank."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from horovod.errors import UsageError
from horovod.spark.common.constants import METRIC_PRINT_FREQUENCY
from horovod.spark.common.epoch_loop import EpochLoop, RankTask
from horovod.spark.common.progress import Progress
from horovod.spark.torch.device import check_devices, device_of
from horovod.spark.torch.losses import Loss, loss_of
from horovod.spark.torch.measuring import Measuring, in_words
from horovod.spark.torch.model_bytes import model_of
from horovod.spark.torch.plain import loaded, saved
from horovod.spark.torch.shaping import Shaping, dtype_of, one_for_each
from horovod.spark.torch.step_weights import StepWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from horovod.spark.common.datamodule import DataModule
    from horovod.spark.torch.model_bytes import OptimizerRecord
    from horovod.spark.torch.shaping import Columns


@dataclass(frozen=True, kw_only=True)
class TorchTask(RankTask):
    """The task of a rank.

    Attributes:
        optimizer: with the learning rates for one rank.
        loss, loss_constructors: what makes the loss; one of them is None.
        loss_weights: one for each label, or None.
        metrics: groups of functions.
        input_shapes, label_shapes: see :class:`Shaping`.
        minibatch: a step in place of :func:`_step`, or None.
    """

    optimizer: OptimizerRecord
    loss: Any
    loss_constructors: Any
    loss_weights: Sequence[float] | None
    metrics: Sequence[Sequence[Callable[..., Any]]]
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    minibatch: Callable[..., tuple[Any, torch.Tensor]] | None


def train(task: TorchTask) -> bytes | None:
    """Train on this rank; all ranks of the job call it.

    Returns:
        The last checkpoint on rank 0, None on the others.
    """
    task.data.begin()
    if task.data.seed is not None:
        torch.manual_seed(task.data.seed)
    hvd.init()
    return EpochLoop(task, _Training(task)).train()


class _Training:
    """The model, the optimizer and the history of a rank; see :class:`Framework`."""

    whole_batches = True

    def __init__(self, task: TorchTask) -> None:
        self.progress = Progress(history=[])
        self._task = task
        self._device = device_of(task.data.use_gpu)
        self._model = model_of(task.model).to(self._device)
        self._optimizer = hvd.DistributedOptimizer(
            task.optimizer.bound_to(self._model),
            named_parameters=self._model.named_parameters(),
            backward_passes_per_step=task.passes,
            compression=task.compression or hvd.Compression.none,
        )
        self._weights = StepWeights([self._optimizer])
        self._shaping = Shaping(
            task.data, dtype_of(self._model), self._device, task.input_shapes, task.label_shapes
        )
        self._loss = self._make_loss()

    def state(self) -> hvd.elastic.TorchState:
        return hvd.elastic.TorchState(self._model, self._optimizer, progress=self.progress)

    def translating(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self, checkpoint: bytes | None, check_run: Callable[[str | None], None]) -> None:
        if checkpoint is not None:
            state = checkpoint_of(checkpoint)
            check_run(state["run"])
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.progress.history = state["history"]
            self.progress.epoch = len(state["history"])
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        _multiply_rates(self._optimizer.param_groups, self.progress.size)

    def fit(self, loop: EpochLoop, module: DataModule) -> bool:
        check_devices(self._device)
        batches = iter(module.train_data())
        validation = iter(module.val_data()) if module.has_val else None
        for epoch in loop.epochs:
            self._train_epoch(loop, epoch, itertools.islice(batches, loop.rest.steps))
            if validation is not None:
                self._validate(itertools.islice(validation, module.steps_per_epoch_val))
            self._end_epoch(epoch)
            loop.end_epoch()
        return False

    def result(self) -> bytes:
        """Return history and state of model and optimizer, with the learning rates for one rank."""
        optimizer = self._optimizer.state_dict()
        optimizer["param_groups"] = [dict(group) for group in optimizer["param_groups"]]
        _multiply_rates(optimizer["param_groups"], 1 / self.progress.size)
        return saved(
            {
                "model": self._model.state_dict(),
                "optimizer": optimizer,
                "history": json.dumps(self.progress.history),
                "run": self._task.run.described(),
            }
        )

    def _train_epoch(self, loop: EpochLoop, epoch: int, batches: Iterator[Columns]) -> None:
        """Take the steps of an epoch that are left."""
        task, progress = self._task, self.progress
        self._model.train()
        self._optimizer.zero_grad()
        measuring = Measuring(task.metrics, task.data.labels, progress.measured)
        before = progress.steps_done
        done = before
        for index, columns in enumerate(batches, start=before):
            self._take_step(loop, index, columns, measuring)
            self._tell(epoch, index, measuring)
            done = index + 1
            if loop.commit_is_due():
                progress.measured = measuring.gather("commit")
                loop.commit()
        if task.minibatch is None and done % task.passes:
            self._optimizer.step()
        progress.history.append({"epoch": epoch, "train": measuring.over_all_ranks("train")})

    def _take_step(
        self, loop: EpochLoop, index: int, columns: Columns, measuring: Measuring
    ) -> None:
        task = self._task
        step = task.minibatch or _step
        batch = self._shaping.batch(columns)
        counts = self._weights.before_step(loop)
        rows = batch.rows if counts else 0
        if loop.is_elastic and batch.rows == 1 < task.data.train.batch_size:
            batch = batch.twice()  # layers that normalize over a batch refuse a single row
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
        measuring.add(loss, outputs, labels, rows)
        loop.count_step()

    @torch.no_grad()
    def _validate(self, batches: Iterator[Columns]) -> None:
        """Measure the model, and add that to the history of the epoch."""
        self._model.eval()
        measuring = Measuring(self._task.metrics, self._task.data.labels)
        for columns in batches:
            batch = self._shaping.batch(columns)
            outputs, labels = self._shaping.outputs_and_labels(
                self._model(*batch.inputs), batch.labels
            )
            loss = self._loss(outputs, labels, batch.weights)
            measuring.add(loss, outputs, labels, batch.rows)
        self.progress.history[-1]["validation"] = measuring.over_all_ranks("validation")

    def _end_epoch(self, epoch: int) -> None:
        """Save a checkpoint, and print what was measured in the epoch."""
        if hvd.rank() != 0:
            return
        self._task.run.save(self.result())
        if self._task.data.verbose:
            last = self.progress.history[-1]
            parts = [
                f"{part} {in_words(last[part])}" for part in ("train", "validation") if part in last
            ]
            print(f"epoch {epoch + 1}/{self._task.epochs}: {'; '.join(parts)}", flush=True)

    def _make_loss(self) -> Loss:
        task = self._task
        functions = task.loss
        if task.loss_constructors is not None:
            labels = len(task.data.labels)
            makers = one_for_each(task.loss_constructors, labels, "loss_constructors")
            known = {"model": self._model, "optimizer": self._optimizer, "torch": torch, "hvd": hvd}
            functions = [make(**known) for make in makers]
        return loss_of(functions, task.loss_weights, task.data.labels)

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
    """Return the contents of a checkpoint, on the CPU.

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
