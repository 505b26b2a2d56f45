"""What elastic training with ``model.fit`` is on every backend of Keras."""

from __future__ import annotations

import sys
from abc import abstractmethod
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from horovod._keras.callback import TrainingCallback, all_ranks
from horovod._keras.epoch_end import EpochEnd, stops_training
from horovod._rank import context
from horovod._train.elastic.changes import agree_on_changes
from horovod._train.elastic.leaving import leave_politely
from horovod._train.elastic.loop import ElasticLoop
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._keras.callback import Logs
    from horovod._train.elastic.ledger import Ledger, Share

__all__ = ["ElasticFit", "FitData", "Forgiving", "training_of"]

_LOOP = "fit"


class FitData:
    """The data that ``fit`` reads, one batch for each step that is taken.

    Args:
        source: of the samples.
        ledger: of this epoch.
        batch_size: samples per rank.

    Attributes:
        source, ledger, batch_size: see above.
        share: of the step that is being taken.
    """

    def __init__(self, source: Any, ledger: Ledger, batch_size: int) -> None:
        self.source = source
        self.ledger = ledger
        self.batch_size = batch_size
        self.share: Share | None = None
        self._shares: Iterator[Share] = iter(())
        self._batches: Iterator[Any] | None = None
        self._ahead = 0

    def go_on(self, shares: Iterator[Share], batches: Iterator[Any]) -> None:
        """Continue with other shares and batches."""
        self._shares, self._batches, self._ahead = shares, batches, 0

    def next_share(self) -> Share:
        """Return the share of the next step."""
        self.share = next(self._shares)
        self._ahead -= 1
        return self.share

    def next_batch(self) -> Any:
        """Return the batch of the next step; None if there is none."""
        assert self._batches is not None
        self._ahead += 1
        return next(self._batches, None)

    def check_nothing_is_ahead(self) -> None:
        """Checks that as many batches were read as steps are taken.

        Raises:
            UsageError: somebody reads ahead.
        """
        if self._ahead:
            raise UsageError(
                "batches are read before their steps, so they could not follow a change of the "
                "ranks: fit what training.dataset() returns, without class_weight"
            )


class ElasticFit(ElasticLoop, TrainingCallback):
    """The callback of an elastic training; a backend makes the data, and the step that forgives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        TrainingCallback.__init__(self)
        super().__init__(*args, **kwargs)
        self._data: FitData | None = None
        self._end: EpochEnd | None = None
        self._while_fitting = ExitStack()
        # Whether this rank has taken the last step of the epoch, and is not just sent behind it.
        self._took_last_step = False

    @property
    def epoch(self) -> int:
        """The epoch where the job is, for ``initial_epoch``; 0 in a new one. Joins the job.

        Raises:
            StartError, Dismissed: see :meth:`epochs`.
        """
        self._begin()
        return self._position.epoch

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Joins the job, if it has not yet."""
        if self._data is None:
            raise UsageError(
                "callbacks=[training]: fit training.dataset(...), so that it can go on"
            )
        steps = getattr(self.model, "steps_per_execution", None) or 1
        if int(getattr(steps, "numpy", lambda: steps)()) != 1:
            raise UsageError("steps_per_execution: ranks come and go between single steps, use 1")
        self._while_fitting.enter_context(leave_politely())
        self._while_fitting.enter_context(self._rounds)
        with self.ending_fit_on_errors():
            self._begin()
        self.model.train_function = self._forgive(self.model.train_function)
        self._while_fitting.callback(_forgive_no_more, self.model)
        self._end = EpochEnd(self.model)
        self._took_last_step = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Takes in the changes that have come while an epoch ended."""
        self._cross_boundary()
        if self._position.epoch != epoch:
            raise UsageError(
                f"fit begins epoch {epoch}, but the job is in epoch {self._position.epoch}: give "
                "initial_epoch=training.epoch, and in later calls of fit further epochs"
            )
        assert self._data is not None
        self._epoch = epoch
        self._step_samples = self._data.ledger.global_batch
        self._data.ledger.begin(epoch)
        self._enter(_LOOP, self._data.ledger)
        self._expect_agreement(self._data.batch_size)
        self._plan()

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Prepares the step."""
        assert self._data is not None
        self._begin_pass(self._data.next_share())

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Counts the batch, and takes in changes of the job; collective.

        Raises:
            UsageError: ranks have different data, orders of it or batch sizes, or somebody reads
                batches ahead.
        """
        data = self._data
        assert data is not None
        assert data.share is not None
        assert self._end is not None
        if self._loss is None:
            data.check_nothing_is_ahead()
        if self._loss is None and data.share.is_last and data.share.ends_step:
            self._end_passes()
            # A change waits for the end of the epoch, which newcomers have no part in.
            self._position.advance(_LOOP, data.share.consumed)
            self._position.end(_LOOP)
            self._save()
            self._took_last_step = True
        else:
            with self.ending_fit_on_errors():
                goes_on = self._end_pass(_LOOP, data.share)
            if not goes_on:
                self._plan()
        if self._position.epoch != self._epoch or self._position.is_over(_LOOP):
            self._end.end_epoch()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Lets the next epoch follow, unless the training stops on some rank."""
        assert self._end is not None
        stops = stops_training(self.model)
        if self._took_last_step:
            with self.guard():
                stops = not all_ranks(not stops, "Training.stops")
        self._end.epoch_ended()
        if stops:
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Makes sure that all ranks have ended."""
        self._end_passes()
        self._cross_boundary()
        self._while_fitting.close()

    @property
    def ends_epoch_with_others(self) -> bool:
        """Whether all ranks end this epoch together, so that callbacks may communicate."""
        return self._took_last_step

    @property
    def parts_of_epoch(self) -> tuple[float, float]:
        """The parts of the epoch that are done before and after the step that begins.

        They are the same on all ranks, while Keras counts the batches of this rank.
        """
        data = self._data
        assert data is not None
        length, done = data.ledger.length, self._position.consumed(_LOOP)
        return done / length, min(done + context.size() * data.batch_size, length) / length

    @contextmanager
    def ending_fit_on_errors(self) -> Iterator[None]:
        """Around what may end ``fit`` with an error, of which Keras tells no callback."""
        try:
            yield
        except BaseException:
            self._while_fitting.__exit__(*sys.exc_info())
            raise

    def _follow(self, error: HorovodInternalError | HostsUpdatedInterrupt) -> None:
        with self.ending_fit_on_errors():
            super()._follow(error)

    def _cross_boundary(self) -> None:
        """Comes from the end of an epoch to the next one; collective, if others come as well."""
        if not self._took_last_step:
            return
        self._took_last_step = False
        self._position.next_epoch()
        self._save()
        try:
            if self._loss is not None:
                raise self._loss
            change = agree_on_changes()
            if change is None:
                return
            ended: HostsUpdatedInterrupt | HorovodInternalError
            ended = HostsUpdatedInterrupt(not change.needs_sync)
        except (HostsUpdatedInterrupt, HorovodInternalError) as error:
            ended = error
        self._follow(ended)

    def _plan(self) -> None:
        """Divides what is left of the epoch among the ranks that there are."""
        data = self._data
        assert data is not None
        if self._position.epoch != self._epoch or self._position.is_over(_LOOP):
            return
        self._report_global_batch(data.batch_size)
        data.ledger.consumed = self._position.consumed(_LOOP)
        rank, size = context.rank(), context.size()
        shares = data.ledger.shares(rank, size, data.batch_size)
        batches = (
            batch for _, batch in self._read(data.source, data.ledger, rank, size, data.batch_size)
        )
        data.go_on(shares, batches)

    @abstractmethod
    def _forgive(self, plain: Any) -> Forgiving:
        """Return a step that ends without effect if a rank is lost in it.

        Args:
            plain: the function that Keras has made.
        """


class Forgiving:
    """A step of ``fit`` that ends without effect if a rank is lost in it.

    Args:
        plain: the function that Keras has made.
        training: goes back then.

    Attributes:
        plain, training: see above.
        logs: of the last step that was taken.
    """

    def __init__(self, plain: Any, training: ElasticFit) -> None:
        self.plain: Any = plain.plain if isinstance(plain, Forgiving) else plain
        self.training = training
        self.logs: Any = {}

    def __call__(self, *arguments: Any) -> Any:
        with self.training.ending_fit_on_errors(), self.training.guard():
            self.logs = self.plain(*arguments)
        return self.logs


def _forgive_no_more(model: Any) -> None:
    if isinstance(model.train_function, Forgiving):
        model.train_function = model.train_function.plain


def training_of(model: Any) -> ElasticFit | None:
    """The training that follows the job while a model is fitted; None if there is none."""
    step = getattr(model, "train_function", None)
    return step.training if isinstance(step, Forgiving) else None
