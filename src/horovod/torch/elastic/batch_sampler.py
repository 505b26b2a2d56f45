"""A batch sampler that divides the rest of an epoch anew when the job changes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch.utils.data

from horovod._rank import context
from horovod._train.elastic.ledger import Ledger
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

__all__ = ["ElasticBatchSampler"]


class ElasticBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Divides a data set into the batches of each rank, and what is left of it after a change.

    Each sample of an epoch is in one batch of one rank. In the last step some ranks may have fewer
    samples than others, and a rank for which none is left repeats some of others.

    Give it to a ``DataLoader`` and to the state of training, tell it of each batch, and begin the
    next epoch at the end of one, as with :class:`ElasticSampler`. A ``StatefulDataLoader`` of
    torchdata counts by itself what it hands out, also if its workers read ahead: give the loader to
    the state, in place of the sampler, and do not call :meth:`record_batch`.

    Args:
        dataset: has a length, which stays the same.
        batch_size: samples per rank.
        shuffle: whether each epoch has an order of its own.
        seed: of the orders, the same on all ranks.
        drop_last: whether to leave out a last step in which some rank would have fewer samples.

    Attributes:
        dataset, batch_size, shuffle, seed, drop_last: see above.
        epoch: its number.
        processed_num: how many samples of the epoch all ranks together have done.

    Raises:
        UsageError: the batch size is below 1.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> sampler = hvd.elastic.ElasticBatchSampler(dataset, batch_size=32)
        >>> loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
        >>> # in the training function:
        >>> for batch in loader:
        ...     step(batch)
        ...     state.sampler.record_batch()
        >>> state.sampler.set_epoch(state.epoch + 1)
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: say how many samples a rank has in a step")
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._ledger = Ledger(len(dataset), shuffle=shuffle, seed=seed)
        self.reset()

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._ledger.shuffle

    @property
    def seed(self) -> int:
        """Seed of the orders."""
        return self._ledger.seed

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._ledger.epoch

    @property
    def processed_num(self) -> int:
        """Number of samples of the epoch that all ranks together have done."""
        return self._ledger.consumed

    @property
    def samples_done(self) -> int:
        """Number of samples that all ranks together have done in all epochs."""
        return self.epoch * self._ledger.length + self._ledger.consumed

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; call it at the end of one with the number of the next."""
        self._ledger.begin(epoch)

    def record_batch(self, batch_idx: int = 0, batch_size: int | None = None) -> None:
        """Counts a batch that every rank has done.

        Args:
            batch_idx, batch_size: not needed; as :meth:`ElasticSampler.record_batch` has them.
        """
        step = self.batch_size * self._size
        self._ledger.consumed = min(self._ledger.consumed + step, self._ledger.length)

    def state_dict(self) -> dict[str, int]:
        """The number of the epoch and how many samples are done."""
        return self._ledger.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to what :meth:`state_dict` returned, on any rank of a job of any size."""
        self._ledger.load_state_dict(state_dict)

    def reset(self) -> None:
        """Divides what is left over the ranks of the job as it is now."""
        self._rank, self._size = context.rank(), context.size()

    def __iter__(self) -> Iterator[list[int]]:
        self.reset()
        return _Batches(
            copy.copy(self._ledger), self._rank, self._size, self.batch_size, self.drop_last
        )

    def __len__(self) -> int:
        step = self.batch_size * self._size
        if self.drop_last:
            return self._ledger.left // step
        return self._ledger.steps(self._size, self.batch_size)


class _Batches:
    """The rest of an epoch; loaders of torchdata keep its state.

    Args:
        ledger: of its own.
        rank, size: of the job when the loop began.
        batch_size, drop_last: see :class:`ElasticBatchSampler`.
    """

    def __init__(
        self, ledger: Ledger, rank: int, size: int, batch_size: int, drop_last: bool
    ) -> None:
        self._ledger = ledger
        self._rank, self._size = rank, size
        self._batch_size = batch_size
        self._drop_last = drop_last

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[int]:
        if not self._ledger.left:
            raise StopIteration
        share = self._ledger.share(self._rank, self._size, self._batch_size)
        if self._drop_last and not share.is_full:
            raise StopIteration
        self._ledger.consumed = share.consumed
        return list(share.indices)

    def state_dict(self) -> dict[str, int]:
        """Return the position of the loader, not that of the sampler."""
        return self._ledger.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes there."""
        self._ledger.load_state_dict(state_dict)
