"""A sampler that divides the rest of an epoch anew when the job changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.utils.data

from horovod._rank import context
from horovod._train.elastic.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set over the ranks, and what is left of it when their number changes.

    Give it to a ``DataLoader`` and to the state of training, tell it of each batch, and begin the
    next epoch at the end of one. After a change start a new loop over the loader: it has what no
    rank has done. Every rank has equally many samples; some are repeated at the end for that.

    Args:
        dataset: has a length, which stays the same.
        shuffle: whether each epoch has an order of its own.
        seed: of the orders, the same on all ranks.

    Attributes:
        dataset, shuffle, seed: see above.
        epoch: its number.
        processed_num: how many samples of the epoch all ranks together have done.
        num_replicas, rank: the size of the job and this rank when it was last divided.
        remaining_indices: the samples that nobody had done then.
        num_samples, total_size: how many of them, with repeated ones, this rank and all ranks have.
        processed_indices: what this rank told :meth:`record_indices` of the epoch.

    Raises:
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> sampler = hvd.elastic.ElasticSampler(dataset)
        >>> loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
        >>> # in the training function:
        >>> for batch_idx, batch in enumerate(loader):
        ...     step(batch)
        ...     state.sampler.record_batch(batch_idx, 32)
        >>> state.sampler.set_epoch(state.epoch + 1)
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self._ledger = Ledger(len(dataset), shuffle=shuffle, seed=seed)
        self.reset()

    @property
    def samples_done(self) -> int:
        """Number of samples that all ranks together have done in all epochs."""
        length = len(self.dataset)
        return self.epoch * length + min(self.processed_num, length)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; call it at the end of one with the number of the next."""
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch that every rank has done.

        Args:
            batch_idx: not needed.
            batch_size: samples per rank; a shorter last batch may count as a whole one.
        """
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Iterable[int]) -> None:
        """Counts the samples of this rank's batch; the other ranks have done as many of theirs."""
        indices = list(indices)
        self.processed_indices.update(indices)
        self.processed_num += len(indices) * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of a batch of this rank.

        Args:
            batch_idx: of the batch since the rest was last divided, from 0.
            batch_size: samples per rank.
        """
        return self._own[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The number of the epoch and how many samples are done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to what :meth:`state_dict` returned, and divides the rest."""
        self.epoch = state_dict["epoch"]
        # Before 0.24 the samples themselves were kept, of all ranks.
        done = state_dict.get("processed_indices", ())
        self.processed_num = state_dict.get("processed_num", len(done))
        self.processed_indices = set()
        self.reset()

    def reset(self) -> None:
        """Divides what is left over the ranks of the job as it is now."""
        self.num_replicas, self.rank = context.size(), context.rank()
        ledger = self._ledger
        ledger.shuffle, ledger.seed = self.shuffle, self.seed
        ledger.epoch, ledger.consumed = self.epoch, self.processed_num
        self.remaining_indices = list(ledger.order[self.processed_num :])
        self._own = ledger.padded(self.rank, self.num_replicas)
        self.num_samples = len(self._own)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._own))

    def __len__(self) -> int:
        return self.num_samples
