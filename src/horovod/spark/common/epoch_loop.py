"""The loop over the epochs of an estimator on one rank, for all frameworks.

How a row gets to a batch: the estimator writes Parquet files, whose row groups are the same for all
ranks. In each step a rank trains a batch of its share of the rows
(:mod:`horovod.spark.data.division`), which its data module reads. When ranks come or go, the loop
is entered again on all of them, with the state of the last commit, and the new ranks divide the
rows that are left of the epoch. So each row of an epoch is trained once; after the loss of a rank,
once since the last commit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import rejoin, run_fn
from horovod.errors import HostsUpdatedInterrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._train.elastic.state import State
    from horovod.spark.common.datamodule import DataModule
    from horovod.spark.common.progress import Progress
    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import EpochRest, TrainingData

COMMIT_EVERY = 100
"""After how many steps of the optimizer an elastic training commits within an epoch."""


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """The task of a rank, whatever the framework; can be sent to it.

    Attributes:
        data: what it reads.
        run: where checkpoints go, and from where it goes on.
        model: as the ``model_bytes`` of its framework gives it.
        compression, passes: of the distributed optimizers.
        epochs: how many there are, with those of the checkpoint.
    """

    data: TrainingData
    run: RunFolder
    model: bytes
    compression: Any
    passes: int
    epochs: int


class Framework(Protocol):
    """The framework's part: the training of a model on one rank.

    Attributes:
        whole_batches: whether a fixed number of ranks leaves out rows that fill no batch.
        progress: of the training.
    """

    whole_batches: bool
    progress: Progress

    def state(self) -> State:
        """Return what goes on when ranks come or go, the progress included."""

    def translating(self) -> AbstractContextManager[object]:
        """Return a context in which errors of the framework become those of Horovod."""

    def begin(self, checkpoint: bytes | None, check_run: Callable[[str | None], None]) -> None:
        """Let all ranks begin with the same model; collective.

        Args:
            checkpoint: from which the run goes on; None for a new run.
            check_run: refuses the checkpoint of another run, given what it says of its own.
        """

    def fit(self, loop: EpochLoop, module: DataModule) -> bool:
        """Train the epochs of the loop, from the state that all ranks have; collective.

        Returns:
            Whether a callback has ended the training.
        """

    def result(self) -> bytes:
        """Return the checkpoint of the model that was trained."""


class EpochLoop:
    """Trains the epochs that are left on this rank; all ranks of the job make one.

    Args:
        task: of the ranks.
        framework: trains.

    Attributes:
        epochs: that :meth:`Framework.fit` trains now: all that are left, or the rest of one.
        rest: what is left of the first of them, and all of the others.
        steps_here: steps taken of the current epoch by the ranks that there are.
    """

    epochs: range
    rest: EpochRest
    steps_here: int

    def __init__(self, task: RankTask, framework: Framework) -> None:
        self._task = task
        self._framework = framework
        self._progress = framework.progress
        self._state: State | None = None
        # Of the current epoch, by the ranks that there were.
        self._stretches: list[tuple[int, int]] = []

    @property
    def is_elastic(self) -> bool:
        """Return whether ranks may come and go."""
        return self._state is not None

    def train(self) -> bytes | None:
        """Train, and go on when ranks come or go; return the checkpoint on rank 0.

        Raises:
            UsageError: the run trains something else.
            StartError: the data are not those of the estimator.
        """
        if context.elastic_worker() is None:
            self._fit()
        else:
            self._state = self._framework.state()
            fit = run_fn(lambda state: self._fit(), rejoin, self._framework.translating)
            fit(self._state)
        return self._framework.result() if context.rank() == 0 else None

    def counted(self) -> int:
        """Return how many rows of this rank count in the next step."""
        return self.rest.division.counted(context.rank(), self.steps_here)

    def is_full(self) -> bool:
        """Return whether all ranks have whole batches in the next step."""
        return self.rest.division.is_full(self.steps_here)

    def count_step(self) -> None:
        """Count a step that has been taken."""
        self._progress.samples_done += self.rest.division.total(self.steps_here)
        self.steps_here += 1

    def commit_is_due(self) -> bool:
        """Return whether to commit now, within the epoch; the same on all ranks."""
        every = COMMIT_EVERY * self._task.passes
        is_last = self.steps_here >= self.rest.steps
        return self.is_elastic and not is_last and self.steps_here % every == 0

    def commit(self) -> None:
        """Commit the steps that have been taken, and look for changes; collective.

        Raises:
            HostsUpdatedInterrupt: ranks come or go.
            HorovodInternalError: a rank was lost.
        """
        self._progress.stretches = [*self._stretches, (context.size(), self.steps_here)]
        if self._state is not None:
            self._state.commit()

    def end_epoch(self, stops: bool = False) -> None:
        """Begin the next epoch, and commit; collective.

        Args:
            stops: whether the training ends here.

        Raises:
            HostsUpdatedInterrupt, HorovodInternalError: see :meth:`commit`.
        """
        self._progress.end_epoch()
        self._stretches, self.steps_here = [], 0
        if self._state is None:
            return
        try:
            self._state.commit()
        except HostsUpdatedInterrupt:
            if not stops and self._progress.epoch < self._task.epochs:
                raise

    def _fit(self) -> None:
        self._begin()
        has_ended = False
        while not has_ended and self._plan():
            rank, size = context.rank(), context.size()
            module = self._task.data.module_for(rank, size, self.epochs, self.rest, self._framework)
            # That of a user may be one of Lightning, which nobody opens.
            with module if isinstance(module, AbstractContextManager) else nullcontext():
                self._task.data.check_marks(rank)
                has_ended = self._framework.fit(self, module)

    def _begin(self) -> None:
        progress = self._progress
        if progress.size:
            return  # others have begun, whose state this rank has
        found = self._task.run.load() if context.rank() == 0 else None
        group = context.global_group()
        checkpoint = objects.broadcast_object(group, found, 0, name="checkpoint")
        progress.size = context.size()
        self._framework.begin(checkpoint, self._task.run.check)
        if checkpoint is not None and progress.epoch >= self._task.epochs and context.rank() == 0:
            self._task.run.say_nothing_is_left(self._task.epochs)

    def _plan(self) -> bool:
        """Plan the rest of an epoch alone, or all epochs that are left; return whether any is."""
        first = self._progress.epoch
        self._stretches, self.steps_here = list(self._progress.stretches), 0
        whole_batches = self._framework.whole_batches and not self.is_elastic
        self.rest = self._task.data.rest_of_epoch(context.size(), self._stretches, whole_batches)
        self.epochs = range(first, first + 1 if self._stretches else self._task.epochs)
        return first < self._task.epochs
