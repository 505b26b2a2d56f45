"""The simple way of elastic training with ``model.fit`` of Keras 3 on JAX and PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from horovod._keras.accumulating import check_accumulates
from horovod._keras.elastic_fit import ElasticFit, FitData
from horovod._keras.reducer import Keras3Reducer
from horovod._keras.samples import Samples
from horovod._keras.sharding.whole import is_sharding
from horovod._keras.state import FittedMetrics, Keras3State
from horovod._keras.which import kind_of
from horovod._train.elastic.ledger import Ledger
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import keras

    from horovod._keras.callback import Logs
    from horovod._train.elastic.ledger import Share

__all__ = ["Keras3Training"]


class Keras3Training(ElasticFit):
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

    In a loop of one's own, ``epochs()`` and ``batches()`` go on in the same way, with each step in
    ``with training.guard():``.

    Args:
        model: of Keras 3, compiled.
        optimizer: that of the model if None.
        commit_every_s: how old the last commit may be when a batch ends, in seconds; 0 commits
            after each batch.
        kwargs: what else has a state: variables, lists of them, models; or plain values, which
            ``track`` is for.

    Raises:
        UsageError: the model has no weights yet, the optimizer averages no gradients or takes a
            step of several batches, or an argument is wrong.

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

    _state_class: type[Keras3State]

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.Optimizer | None = None,
        *,
        commit_every_s: float = 10.0,
        **kwargs: object,
    ) -> None:
        state = self._state_class(model, optimizer, training_metrics=FittedMetrics(model), **kwargs)
        self._reducer: Any = _reducer_of(state.optimizer)
        self._known: tuple[Any, Samples] | None = None
        # What Keras has looked at since the last call of fit.
        self._shown: FitData | None = None
        super().__init__(state, commit_every_s, **self._joining())

    def dataset(
        self,
        dataset: object,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        global_batch: int | None = None,
    ) -> Iterator[Any]:
        """Return the data to fit: this rank's batches, which follow the changes of the job.

        Args:
            dataset: the same on all ranks: inputs and targets, as a tuple of arrays of one length,
                a sequence of such samples, or a ``PyDataset``, each batch of which is a sample.
            batch_size: samples per rank; left out for a ``PyDataset``. With ``global_batch``, the
                most samples in a batch.
            shuffle: whether each epoch has an order of its own.
            seed: of the orders, the same on all ranks.
            global_batch: how many samples all ranks together have in a step of the optimizer, as
                ``batches`` takes it. Keras counts the batches, of which a step may need more.

        Returns:
            A generator for ``fit`` alone, which shows Keras what a batch is like. The step takes
            the batch that has its turn when it begins.

        Raises:
            UsageError: an argument is wrong, or there are no samples.
        """
        self._use_global_batch(dataset, global_batch)
        size = self._batch_size_of(dataset, batch_size)
        samples = self._samples_of(dataset)
        ledger = Ledger(len(samples), shuffle=shuffle, seed=seed, global_batch=global_batch)
        if not ledger.length:
            raise UsageError("dataset() without samples: model.fit trains on some in each epoch")
        self._data = FitData(dataset, ledger, size)
        return self._examples(self._data, samples.batch([0]))

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Joins the job, if it has not yet.

        Raises:
            UsageError: other data is fitted.
        """
        if self._data is None or self._shown is not self._data:
            raise UsageError(
                "callbacks=[training]: fit what training.dataset(...) has returned last, since the "
                "steps take their batches from it"
            )
        self._shown = None
        super().on_train_begin(logs)

    def next_batch(self) -> Any:
        """Return the batch of the step that begins: a structure of arrays."""
        assert self._data is not None
        return self._data.next_batch()

    def _examples(self, data: FitData, batch: Any) -> Iterator[Any]:
        while True:
            self._shown = data
            yield batch

    @abstractmethod
    def _joining(self) -> dict[str, Any]:
        """Return how errors are translated, and how a job is joined again, for the loop."""

    def _check_accumulates(self, dataset: Any) -> None:
        optimizer: Any = self._state.optimizer  # type: ignore[attr-defined]
        if self._samples_of(dataset).makes_batches:
            raise UsageError(
                f"global_batch of {type(dataset).__name__}, which makes batches of its own: a "
                "global batch counts samples; leave global_batch out"
            )
        check_accumulates(optimizer)
        self._accumulate(optimizer)

    @abstractmethod
    def _accumulate(self, optimizer: Any) -> None:
        """Let the optimizer take a step for several passes."""

    def _length_of(self, dataset: Any) -> int:
        return len(self._samples_of(dataset))

    def _samples_of(self, dataset: Any) -> Samples:
        """Return the samples of a data set, whose arrays are converted once."""
        if self._known is None or self._known[0] is not dataset:
            self._known = dataset, Samples(dataset)
        return self._known[1]

    def _batch_size_of(self, dataset: Any, batch_size: int | None) -> int:
        makes_batches = self._samples_of(dataset).makes_batches
        if batch_size is None and makes_batches:
            return 1
        if batch_size is None or batch_size < 1 or makes_batches:
            raise UsageError(
                f"batch_size={batch_size} of {type(dataset).__name__}: say how many samples a rank "
                "has in a step, except where the data is made of batches"
            )
        return batch_size

    def _read(
        self, dataset: Any, ledger: Ledger, rank: int, size: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        samples = self._samples_of(dataset)
        for share in ledger.shares(rank, size, batch_size):
            yield share, samples.batch(share.indices)


def _reducer_of(optimizer: Any) -> Keras3Reducer:
    """Return what reduces the gradients of an optimizer, or of the one that it scales losses for.

    Raises:
        UsageError: nothing does, or a step has several batches.
    """
    wrapping = getattr(optimizer, "wrapping", None)
    if wrapping is not None and wrapping.passes > 1:
        raise UsageError("backward_passes_per_step: Training takes a step per batch")
    reducer = vars(optimizer).get("_reducer") if optimizer is not None else None
    if isinstance(reducer, Keras3Reducer):
        return reducer
    if is_sharding(optimizer):
        raise UsageError(
            "shard_state=True: Training weighs ranks that have fewer samples, and gradients in "
            "shares have no weight; leave shard_state out, or use hvd.elastic.KerasState"
        )
    raise UsageError(
        f"{kind_of(optimizer)} averages no gradients: compile the model with what "
        "hvd.DistributedOptimizer returns"
    )
