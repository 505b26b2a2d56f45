"""The simple way of elastic training with JAX."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._train.elastic.loop import ElasticLoop, check_batch_size, check_iterable
from horovod.errors import HorovodInternalError, UsageError
from horovod.jax.elastic.run import rejoin
from horovod.jax.elastic.state import JaxState
from horovod.jax.errors import in_our_words
from horovod.jax.state import is_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._train.elastic.ledger import Ledger, Share
    from horovod._train.elastic.loop import Stream
    from horovod.jax.interface_types import PyTree

__all__ = ["Training"]


class Training(ElasticLoop):
    """Makes a plain training loop elastic: it goes on when ranks come or go.

    The loops are those of any script. Between two batches, ranks come and leave without loss of a
    step. If a rank is lost, ``with training.guard()`` ends silently where a collective of the step
    fails; the body of the loop runs to its end, and at the next batch all that is in ``state`` goes
    back to the last commit, and so do the batches. **What is repeated** is the body of the loop,
    for the steps since the last commit, and nothing else. What else the body changes should be
    given to :meth:`track`, or bear to be done again. A newcomer runs the program from its start,
    without the batches that are done. Jitted functions are traced again after a change, for the new
    size.

    Commits are in host memory: at the beginning and the end of each loop and epoch, and
    ``commit_every_s`` after the last one. Each step is awaited before the next batch.

    - The step stands in ``with training.guard():``, and so does all else that communicates.
    - At the end of an epoch ranks may have fewer samples than others, or none of their own.
      ``training.samples`` says how many count: give it to the step as its ``weight``.
    - With ``batches(global_batch=...)`` a step may have several batches: :meth:`accumulate` adds up
      their gradients.
    - Code between the loops runs once on each rank that was there. It must not communicate.

    Args:
        commit_every_s: how old the last commit may be when a step ends, in seconds; 0 commits
            after each step.
        kwargs: trees and plain values with their first values, the same names on all ranks.

    Attributes:
        state: a :class:`horovod.jax.elastic.JaxState` with these names; assign to them.

    Raises:
        UsageError: an argument is wrong.

    Example:
        >>> training = hvd.elastic.Training(params=params, opt_state=tx.init(params))
        >>> state = training.state
        >>> for epoch in training.epochs(10):
        ...     for images, labels in training.batches((images, labels), batch_size=32):
        ...         with training.guard():
        ...             state.params, state.opt_state = step(
        ...                 state.params, state.opt_state, images, labels, training.samples
        ...             )
    """

    def __init__(self, *, commit_every_s: float = 10.0, **kwargs: PyTree) -> None:
        self.state = JaxState(**kwargs)
        self._names = list(kwargs)
        self._samples_of_step = 0
        # Of the gradients of this step so far.
        self._sums: PyTree | None = None
        self._has_accumulated = False
        super().__init__(self.state, commit_every_s, in_our_words, rejoin)

    def _after_step(self, loop: str, share: Share) -> bool:
        # A program that failed says so to whoever waits for what it computes.
        if self._loss is None:
            try:
                with in_our_words():
                    jax.block_until_ready([getattr(self.state, name) for name in self._names])
            except HorovodInternalError as error:
                self._lose(error)
        return super()._after_step(loop, share)

    @property
    def samples_of_step(self) -> int:
        """How many samples count on this rank in the step: those of all its batches."""
        return self._samples_of_step

    def accumulate(self, gradients: PyTree) -> PyTree:
        """Add the gradients of a batch to those of the earlier batches of its step.

        Nothing is sent. Call it once for each batch of ``batches(global_batch=...)``, with the mean
        over the samples of the batch.

        Args:
            gradients: a tree of arrays of this rank, the same tree in all batches.

        Returns:
            A tree of the same shapes and dtypes: the mean over this rank's samples of the step so
            far, divided by those of the whole step. With the last batch, where :attr:`ends_step`
            is true, it is the mean over all of them: reduce it with the weight
            :attr:`samples_of_step`.

        Raises:
            UsageError: no loop with a global batch runs.

        Example:
            >>> for batch in training.batches(data, batch_size=32, global_batch=128):
            ...     with training.guard():
            ...         mean = training.accumulate(gradients_of(state.params, batch))
            ...         if training.ends_step:
            ...             state.params, state.opt_state = apply(
            ...                 state.params, state.opt_state, mean, training.samples_of_step
            ...             )
        """
        if self._step_samples is None:
            raise UsageError(
                "accumulate() outside of a loop over batches(global_batch=...): a batch is a step, "
                "so give its gradients to the optimizer"
            )
        self._has_accumulated = True
        part = self.samples / self._samples_of_step if self._samples_of_step else 0.0
        parts = jax.tree.map(functools.partial(_part_of, part), gradients)
        self._sums = parts if self._sums is None else jax.tree.map(jnp.add, self._sums, parts)
        return self._sums

    def _check_accumulates(self, dataset: Any) -> None:
        """Nothing: the program does."""

    def _length_of(self, dataset: Any) -> int:
        columns = _columns_of(dataset)
        return len(dataset) if columns is None else len(columns[0])

    def _batch_size_of(self, dataset: Any, batch_size: int | None) -> int:
        return check_batch_size(batch_size)

    def _stream_of(self, dataset: Any, epoch: int) -> Stream | None:
        if _columns_of(dataset) is not None or hasattr(dataset, "__getitem__"):
            return None
        if any(kind.__name__ == "DataLoader" for kind in type(dataset).__mro__):
            raise UsageError(
                f"batches() of a {type(dataset).__name__}: it makes batches of its own, in an "
                "order that each rank draws for itself; give its data set and batch_size"
            )
        kinds = "give a tree of arrays, an object with a length and an index, or one with __iter__"
        check_iterable(dataset, kinds)
        return dataset, _stacked

    def _read(
        self, dataset: Any, ledger: Ledger, rank: int, size: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        has_columns = _columns_of(dataset) is not None
        for share in ledger.shares(rank, size, batch_size):
            indices = np.asarray(share.indices)
            if has_columns:
                yield share, jax.tree.map(lambda column, rows=indices: column[rows], dataset)
            else:
                yield share, _stacked([dataset[int(index)] for index in indices])

    def _before_step(self, share: Share) -> None:
        # The step is given its weight by the program.
        self._samples_of_step = share.of_step
        self._has_accumulated = False
        if share.number == 0:
            self._sums = None

    def _end_pass(self, loop: str, share: Share) -> bool:
        if self._step_samples is not None and self._loss is None and not self._has_accumulated:
            raise UsageError(
                "a batch of batches(global_batch=...) without training.accumulate(gradients), "
                "which adds up the gradients of all batches of a step: call it for each batch, and "
                "take the step `if training.ends_step:`, with the weight training.samples_of_step"
            )
        return super()._end_pass(loop, share)

    def _end_passes(self) -> None:
        super()._end_passes()
        self._sums = None


def _part_of(part: float, gradient: Any) -> Any:
    """Return what the gradient of a batch adds to the mean; what does not count may be infinite."""
    return (gradient * part).astype(gradient.dtype) if part else jnp.zeros_like(gradient)


def _columns_of(dataset: Any) -> list[Any] | None:
    """The arrays of a tree that has one row per sample in each of them; None for other data.

    A list is one of samples.

    Raises:
        UsageError: they have different lengths.
    """
    leaves = [] if isinstance(dataset, list) else jax.tree.leaves(dataset)
    if not leaves or not all(is_array(leaf) and leaf.ndim for leaf in leaves):
        return None
    lengths = [len(leaf) for leaf in leaves]
    if len(set(lengths)) != 1:
        raise UsageError(f"batches() of arrays of {lengths} samples: each needs as many")
    return leaves


def _stacked(samples: list[Any]) -> Any:
    """A batch of samples that are trees of one structure: one array per leaf."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *samples)
