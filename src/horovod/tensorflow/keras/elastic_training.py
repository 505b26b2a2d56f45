"""The simple way of elastic training with ``model.fit``."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._rank import context
from horovod._train.elastic.changes import agree_on_changes
from horovod._train.elastic.leaving import leave_politely
from horovod._train.elastic.ledger import Ledger
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError
from horovod.tensorflow.elastic import training
from horovod.tensorflow.elastic.samples import samples_of
from horovod.tensorflow.keras.callback import TrainingCallback, all_ranks
from horovod.tensorflow.keras.epoch_end import EpochEnd, stops_training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._train.elastic.ledger import Share
    from horovod.tensorflow.interface_types import Logs, Model, Optimizer

__all__ = ["Training", "training_of"]

_LOOP = "fit"


class Training(training.Training, TrainingCallback):
    """Makes ``model.fit`` elastic: it goes on when ranks come or go, without being left.

    It is a callback, and makes the data set, which is shuffled already. Between two batches, ranks
    come and leave without loss of a step. If a rank is lost, the step does nothing; model,
    optimizer, metrics and all else given here go back to the last commit, and so do the batches.
    **What is repeated** are the batches since then, with the ``on_batch_...`` of other callbacks.
    Each epoch ends once.

    A newcomer calls ``fit`` as the others have, and begins in the epoch where they are. It has
    their weights from then on, so no callback need broadcast any.

    - The model must have been compiled, with a ``hvd.DistributedOptimizer``, and have its weights.
    - Other callbacks may communicate when an epoch ends if they are those of Horovod.
    - If a callback stops the training on one rank, it stops on all; give this one after it.
    - ``class_weight`` reads ahead in Keras 3, which is refused: give weights of samples with the
      data.

    In a loop of one's own, it is what :class:`horovod.tensorflow.elastic.Training` is.

    Args:
        model: of Keras 2 or 3.
        optimizer: that of the model if None.
        commit_every_s: how old the last commit may be when a batch ends, in seconds; 0 commits
            after each batch.
        kwargs: what else has a state; see the same class.

    Raises:
        UsageError: the model has no weights yet, or an argument is wrong.

    Example:
        >>> training = hvd.elastic.Training(model)
        >>> model.fit(
        ...     training.dataset((images, labels), batch_size=32),
        ...     initial_epoch=training.epoch,
        ...     epochs=10,
        ...     shuffle=False,
        ...     callbacks=[training],
        ... )
    """

    def __init__(
        self,
        model: Model | None = None,
        optimizer: Optimizer | None = None,
        *,
        commit_every_s: float = 10.0,
        **kwargs: object,
    ) -> None:
        TrainingCallback.__init__(self)
        training.Training.__init__(self, model, optimizer, commit_every_s=commit_every_s, **kwargs)
        self._data: _Data | None = None
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

    def dataset(
        self, dataset: object, batch_size: int | None = None, *, shuffle: bool = True, seed: int = 0
    ) -> tf.data.Dataset:
        """Return the data to fit: this rank's batches, which follow the changes of the job.

        Args:
            dataset: the same on all ranks: inputs and targets, as :meth:`batches` takes them. Of a
                ``PyDataset``, ``on_epoch_end`` is not called: what it would shuffle is counted.
            batch_size: samples per rank.
            shuffle: whether each epoch has an order of its own.
            seed: of the orders, the same on all ranks.

        Returns:
            A data set of as many batches as an epoch turns out to have.

        Raises:
            UsageError: an argument is wrong, or there are no samples.
        """
        size = self._batch_size_of(dataset, batch_size)
        ledger = Ledger(self._length_of(dataset), shuffle=shuffle, seed=seed)
        if not ledger.length:
            raise UsageError("dataset() without samples: model.fit trains on some in each epoch")
        self._data = _Data(dataset, ledger, size)
        return self._data.as_tf_data()

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
        self.model.train_function = _Forgiving(self.model.train_function, self)
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
        self._data.ledger.begin(epoch)
        self._enter(_LOOP, self._data.ledger)
        self._plan()

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Prepares the step."""
        assert self._data is not None
        share = self._data.next_share()
        self.samples = share.samples
        self._before_step(share)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Counts the batch, and takes in changes of the job; collective."""
        data = self._data
        assert data is not None
        assert data.share is not None
        assert self._end is not None
        if self._loss is None:
            data.check_nothing_is_ahead()
        if self._loss is None and data.share.is_last:
            # A change waits for the end of the epoch, which newcomers have no part in.
            self._position.advance(_LOOP, data.share.consumed)
            self._position.end(_LOOP)
            self._save()
            self._took_last_step = True
        elif not self._after_step(_LOOP, data.share):
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
        self._cross_boundary()
        self._while_fitting.close()

    @property
    def ends_epoch_with_others(self) -> bool:
        """Whether all ranks end this epoch together, so that callbacks may communicate."""
        return self._took_last_step

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
        data.ledger.consumed = self._position.consumed(_LOOP)
        rank, size = context.rank(), context.size()
        shares = data.ledger.shares(rank, size, data.batch_size)
        batches = (
            batch for _, batch in self._read(data.source, data.ledger, rank, size, data.batch_size)
        )
        data.go_on(shares, batches)


class _Forgiving:
    """A step of ``fit`` that ends without effect if a rank is lost in it.

    Args:
        plain: the function that Keras has made.
        training: goes back then.
    """

    def __init__(self, plain: Any, training: Training) -> None:
        self.plain: Any = plain.plain if isinstance(plain, _Forgiving) else plain
        self._training = training
        self._logs: Any = {}

    def __call__(self, iterator: Any) -> Any:
        with self._training.ending_fit_on_errors(), self._training.guard():
            self._logs = self.plain(iterator)
        return self._logs


def _forgive_no_more(model: Any) -> None:
    if isinstance(model.train_function, _Forgiving):
        model.train_function = model.train_function.plain


class _Data:
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

    def as_tf_data(self) -> tf.data.Dataset:
        """A data set without end that asks this object for each batch when it is needed."""
        example = self._first()
        signature = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), example
        )
        dataset = tf.data.Dataset.from_generator(self._generate, output_signature=signature)
        options = tf.data.Options()
        # Whatever is read before its step belongs to ranks that may be gone by then.
        options.experimental_optimization.inject_prefetch = False
        options.autotune.enabled = False
        return dataset.with_options(options)

    def go_on(self, shares: Iterator[Share], batches: Iterator[Any]) -> None:
        """Continue with other shares and batches."""
        self._shares, self._batches, self._ahead = shares, batches, 0

    def next_share(self) -> Share:
        """Return the share of the next step."""
        self.share = next(self._shares)
        self._ahead -= 1
        return self.share

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

    def _generate(self) -> Iterator[Any]:
        while True:
            if self._batches is None:  # to see what the data is like
                yield self._first()
            else:
                self._ahead += 1
                batch = next(self._batches, None)
                if batch is None:
                    return  # somebody reads ahead, which the end of the step says
                yield batch

    def _first(self) -> Any:
        first = [range(min(self.batch_size, self.ledger.length))]
        return next(iter(samples_of(self.source).read(iter(first), self.batch_size)))


def training_of(model: Model) -> Training | None:
    """The training that follows the job while a model is fitted; None if there is none."""
    step = getattr(model, "train_function", None)
    return step._training if isinstance(step, _Forgiving) else None
