"""A batch sampler that divides the rest of an epoch anew when the job changes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch.utils.data

from horovod._rank import context
from horovod._train.elastic.global_batch import check_global_batch
from horovod._train.elastic.ledger import Ledger
from horovod.errors import UsageError
from horovod.torch.elastic.step_of_passes import StepOfPasses
from horovod.torch.optimizer import ReducingOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

    from horovod._train.elastic.ledger import Share

__all__ = ["ElasticBatchSampler"]


class ElasticBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Divides a data set into the batches of each rank, and what is left of it after a change.

    Each sample of an epoch is in one batch of one rank. In the last step some ranks may have fewer
    samples than others, and a rank for which none is left repeats some of others.

    Give it to a ``DataLoader`` and to the state of training, tell it of each batch, and begin the
    next epoch at the end of one, as with :class:`ElasticSampler`. A ``StatefulDataLoader`` of
    torchdata counts by itself what it hands out, also if its workers read ahead: give the loader to
    the state, in place of the sampler, and do not call :meth:`record_batch`.

    With a constant global batch, a step of the optimizer has as many batches as it takes, and its
    methods ``step()`` and ``synchronize()`` do nothing until the last of them. What must happen
    once for a step, such as that of a learning rate scheduler, stands in ``if sampler.ends_step:``,
    before :meth:`record_batch`. A step that a change interrupts is taken again from its first
    batch.

    Args:
        dataset: has a length, which stays the same.
        batch_size: samples per rank; with ``global_batch``, the most samples in a batch.
        shuffle: whether each epoch has an order of its own.
        seed: of the orders, the same on all ranks.
        drop_last: whether to leave out a last step in which some rank would have fewer samples, or
            which has fewer than ``global_batch``.
        global_batch: how many samples all ranks together have in a step of the optimizer, whatever
            their number; None for ``batch_size`` of each rank. Not with a ``StatefulDataLoader``.
        optimizer: a DistributedOptimizer with op=Average, which takes the steps of the global
            batch: by the mean over all samples of a step.

    Attributes:
        dataset, batch_size, shuffle, seed, drop_last, global_batch: see above.
        epoch: its number.
        processed_num: how many samples of the epoch all ranks together have done.

    Raises:
        UsageError: the batch size is below 1, or the optimizer cannot accumulate gradients.
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
        global_batch: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: say how many samples a rank has in a step")
        check_global_batch(global_batch)
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.global_batch = global_batch
        self._asked = False
        self._step = self._step_of(optimizer)
        self._passes: Iterator[Share] = iter(())
        self._share: Share | None = None
        self._ledger = Ledger(len(dataset), shuffle=shuffle, seed=seed, global_batch=global_batch)
        self.reset()

    def _step_of(self, optimizer: torch.optim.Optimizer | None) -> StepOfPasses | None:
        if self.global_batch is None:
            if optimizer is not None:
                raise UsageError("optimizer without global_batch: leave optimizer out")
            return None
        if not isinstance(optimizer, ReducingOptimizer):
            raise UsageError(
                f"global_batch={self.global_batch} needs the optimizer that takes the steps: give "
                "optimizer=, what hvd.DistributedOptimizer returns"
            )
        return StepOfPasses(optimizer, lambda: self._asked)

    @property
    def ends_step(self) -> bool:
        """Whether the batch that is recorded next ends a step of the optimizer."""
        self._asked = True
        return self._share is None or self._share.ends_step

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
        if self._step is None:
            step = self.batch_size * self._size
            self._ledger.consumed = min(self._ledger.consumed + step, self._ledger.length)
            return
        if self._share is None:
            raise UsageError(
                "record_batch() before a loop over the loader, or after its last batch: call it "
                "once for each batch"
            )
        self._step.end()
        if self._share.ends_step:
            self._ledger.consumed = self._share.consumed
        self._next_pass()

    def _next_pass(self) -> None:
        assert self._step is not None
        self._share = next(self._passes, None)
        self._step.begin(self._share)

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
        ledger = copy.copy(self._ledger)
        ledger.drop_last = self.drop_last
        if self._step is None:
            return _Batches(ledger, self._rank, self._size, self.batch_size)
        self._passes = copy.copy(ledger).shares(self._rank, self._size, self.batch_size)
        self._next_pass()
        return _Passes(ledger.shares(self._rank, self._size, self.batch_size))

    def __len__(self) -> int:
        ledger = copy.copy(self._ledger)
        ledger.drop_last = self.drop_last
        # A newcomer has made the sampler before it knew how many ranks there will be.
        return ledger.batches(context.size(), self.batch_size)


class _Batches:
    """The rest of an epoch; loaders of torchdata keep its state.

    Args:
        ledger: of its own.
        rank, size: of the job when the loop began.
        batch_size: see :class:`ElasticBatchSampler`.
    """

    def __init__(self, ledger: Ledger, rank: int, size: int, batch_size: int) -> None:
        self._ledger = ledger
        self._rank, self._size = rank, size
        self._batch_size = batch_size

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[int]:
        if not self._ledger.steps(self._size, self._batch_size):
            raise StopIteration
        share = self._ledger.share(self._rank, self._size, self._batch_size)
        self._ledger.consumed = share.consumed
        return list(share.indices)

    def state_dict(self) -> dict[str, int]:
        """Return the position of the loader, not that of the sampler."""
        return self._ledger.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes there."""
        self._ledger.load_state_dict(state_dict)


class _Passes:
    """The rest of an epoch, of steps that may have several batches.

    Args:
        shares: of the passes.
    """

    def __init__(self, shares: Iterator[Share]) -> None:
        self._shares = shares

    def __iter__(self) -> _Passes:
        return self

    def __next__(self) -> list[int]:
        return list(next(self._shares).indices)

    def state_dict(self) -> dict[str, int]:
        """Refuse to be counted by a loader of torchdata, which knows no steps."""
        raise UsageError(
            "global_batch with a StatefulDataLoader, which counts batches and not steps: use the "
            "DataLoader of torch, give the sampler to the state, and call record_batch()"
        )
