"""The simple way of elastic training with ``model.fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._keras.elastic_fit import ElasticFit, FitData, Forgiving
from horovod._train.elastic.ledger import Ledger
from horovod.errors import UsageError
from horovod.tensorflow.elastic import training
from horovod.tensorflow.elastic.samples import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod.tensorflow.interface_types import Model, Optimizer

__all__ = ["Training"]


class Training(ElasticFit, training.Training):
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
        super().__init__(model, optimizer, commit_every_s=commit_every_s, **kwargs)

    def dataset(
        self,
        dataset: object,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        global_batch: int | None = None,
    ) -> tf.data.Dataset:
        """Return the data to fit: this rank's batches, which follow the changes of the job.

        Args:
            dataset: the same on all ranks: inputs and targets, as :meth:`batches` takes them. Of a
                ``PyDataset``, ``on_epoch_end`` is not called: what it would shuffle is counted.
            batch_size: samples per rank; with ``global_batch``, the most samples in a batch.
            shuffle: whether each epoch has an order of its own.
            seed: of the orders, the same on all ranks.
            global_batch: how many samples all ranks together have in a step of the optimizer, as
                :meth:`batches` takes it. Keras counts the batches, of which a step may need more.

        Returns:
            A data set of as many batches as an epoch turns out to have.

        Raises:
            UsageError: an argument is wrong, or there are no samples.
        """
        self._use_global_batch(dataset, global_batch)
        size = self._batch_size_of(dataset, batch_size)
        length = self._length_of(dataset)
        ledger = Ledger(length, shuffle=shuffle, seed=seed, global_batch=global_batch)
        if not ledger.length:
            raise UsageError("dataset() without samples: model.fit trains on some in each epoch")
        data = _Data(dataset, ledger, size)
        self._data = data
        return data.as_tf_data()

    def _forgive(self, plain: Any) -> Forgiving:
        return Forgiving(plain, self)


class _Data(FitData):
    """The same as a data set of ``tf.data``."""

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

    def _generate(self) -> Iterator[Any]:
        while True:
            if self._batches is None:  # to see what the data is like
                yield self._first()
            else:
                batch = self.next_batch()
                if batch is None:
                    return  # somebody reads ahead, which the end of the step says
                yield batch

    def _first(self) -> Any:
        first = [range(min(self.batch_size, self.ledger.length))]
        return next(iter(samples_of(self.source).read(iter(first), self.batch_size)))
