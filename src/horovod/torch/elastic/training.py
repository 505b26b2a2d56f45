"""The simple way of elastic training with PyTorch."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_collate,
)

from horovod._train.elastic.loop import ElasticLoop, check_batch_size, check_iterable
from horovod._train.reduce_op import Average
from horovod._train.shard.torch_loader import (
    check_loader,
    drawing,
    has_plain_order,
    options_of,
    order_of_sampler,
    pinning,
)
from horovod.errors import HorovodInternalError, UsageError
from horovod.torch.elastic.state import TorchState
from horovod.torch.elastic.step_of_passes import (
    StepOfPasses,
    check_accumulates,
    step_with_steps,
)
from horovod.torch.optimizer import ReducingOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod._train.elastic.ledger import Ledger, Share
    from horovod._train.elastic.loop import Stream
    from horovod.errors import HostsUpdatedInterrupt

__all__ = ["Training"]

_WEIGHS = "Training weighs each rank by its samples of a step; multiply the loss instead"


class Training(ElasticLoop):
    """Makes a plain training script elastic: it goes on when ranks come or go.

    The loops are those of any script. Between two batches, ranks come and leave without loss of a
    step. If a rank is lost, the steps of ``optimizer`` do nothing from then on; the body of the
    loop runs to its end, and at the next batch model, optimizer and all else given here go back to
    the last commit, and so do the batches. **What is repeated** is the body of the loop, for the
    steps since the last commit, and nothing else: the program is never sent back behind the
    beginning of a loop. What else the body changes should be given to :meth:`track`, or bear to be
    done again. A newcomer runs the program from its start, without the batches that are done.

    Commits are in memory: at the beginning and the end of each loop and epoch, and
    ``commit_every_s`` after the last one.

    - Code between the loops runs once on each rank that was there. It must not communicate, as
      ranks may pass it at different times: newcomers do, and the state they get undoes what they
      changed there.
    - What communicates in the body beside the optimizer, stands in ``with training.guard():``.
    - One batch is one step of the optimizer, unless ``batches(global_batch=...)`` says how many
      samples a step has. Then ``step()`` does nothing until the batch with which a step ends, where
      :attr:`ends_step` is true. So do the learning rate schedulers that are given here.

    Args:
        model: a module, or anything with ``state_dict()``; further ones by keyword.
        optimizer: a ``hvd.DistributedOptimizer`` without a weight. With op=Average, ranks weigh as
            many samples as they have.
        commit_every_s: how old the last commit may be when a step ends, in seconds; 0 commits
            after each step.
        kwargs: what else has a state, for example a learning rate scheduler; or plain values, which
            :meth:`track` is for.

    Raises:
        UsageError: an optimizer is not distributed or has a weight, or an argument is wrong.

    Example:
        >>> training = hvd.elastic.Training(model=model, optimizer=optimizer)
        >>> for epoch in training.epochs(10):
        ...     for inputs, targets in training.batches(dataset, batch_size=32):
        ...         optimizer.zero_grad()
        ...         loss_of(model(inputs), targets).backward()
        ...         optimizer.step()
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        commit_every_s: float = 10.0,
        **kwargs: Any,
    ) -> None:
        self._optimizers: list[ReducingOptimizer] = []
        self._schedulers: list[LRScheduler] = []
        # Of the optimizers, once a loop has a global batch.
        self._steps: list[StepOfPasses] = []
        self._asked = False
        for name, value in {**kwargs, "optimizer": optimizer}.items():
            if isinstance(value, ReducingOptimizer):
                self._optimizers.append(value)
                if value.has_weight and "set_weight" not in vars(value):  # else by a Training
                    raise UsageError(
                        f"{name} has a weight of its own: leave weight= of DistributedOptimizer "
                        f"and set_weight() out, since {_WEIGHS}"
                    )
            elif isinstance(value, LRScheduler):
                self._schedulers.append(value)
            elif isinstance(value, torch.optim.Optimizer):
                raise UsageError(
                    f"{name} averages no gradients: give what hvd.DistributedOptimizer returns"
                )
        super().__init__(TorchState(model, optimizer, **kwargs), commit_every_s)
        for each in self._optimizers:
            self._make_forgiving(each)

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer takes its step with this batch: with each, or see ``batches``."""
        self._asked = True
        return self._ends_step

    def _make_forgiving(self, optimizer: ReducingOptimizer) -> None:
        """Lets an optimizer do nothing in a step in which a rank was lost."""
        for name in ("step", "synchronize", "zero_grad"):
            method = types.MethodType(self._forgiving(getattr(optimizer, name)), optimizer)
            vars(optimizer)[name] = method
        vars(optimizer)["set_weight"] = _refuse_weight
        reducer = optimizer._reducer
        for name in ("on_gradient", "before_gradient"):
            if hook := getattr(reducer, name, None):
                vars(reducer)[name] = functools.partial(self._forgiving(hook), reducer)

    def _forgiving(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def forgiving(_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._loss is None:
                try:
                    return method(*args, **kwargs)
                except HorovodInternalError as error:
                    self._lose(error)
            return None

        return forgiving

    def _follow(self, error: HorovodInternalError | HostsUpdatedInterrupt) -> None:
        super()._follow(error)
        if isinstance(error, HorovodInternalError):
            for optimizer in self._optimizers:  # whose zero_grad() did nothing since the loss
                for param in optimizer._parameter_names:
                    param.grad = None

    def _check_accumulates(self, dataset: Any) -> None:
        if not self._optimizers:
            raise UsageError(
                "global_batch without an optimizer: give Training the hvd.DistributedOptimizer "
                "that takes the steps"
            )
        for optimizer in self._optimizers:
            check_accumulates(optimizer)
        if not self._steps:
            self._steps = [StepOfPasses(each, self._asks) for each in self._optimizers]
            for scheduler in self._schedulers:
                step_with_steps(scheduler, lambda: self._ends_step)

    def _asks(self) -> bool:
        return self._asked

    def _end_pass(self, loop: str, share: Share) -> bool:
        if self._loss is None:
            for step in self._steps:
                step.end()
        return super()._end_pass(loop, share)

    def _end_passes(self) -> None:
        super()._end_passes()
        for step in self._steps:
            step.begin(None)

    def _length_of(self, dataset: Any) -> int:
        return len(_data_of(dataset))

    def _stream_of(self, dataset: Any, epoch: int) -> Stream | None:
        data = _data_of(dataset)
        if not isinstance(data, IterableDataset) and hasattr(data, "__getitem__"):
            return None
        check_iterable(data, "data needs a length and an index, or an iterator")
        if isinstance(dataset, DataLoader) and dataset.num_workers:
            raise UsageError(
                f"batches() of a DataLoader of {type(data).__name__} with num_workers="
                f"{dataset.num_workers}: each worker would read all samples; leave num_workers out"
            )
        if callable(set_epoch := getattr(data, "set_epoch", None)):
            set_epoch(epoch)
        if not isinstance(dataset, DataLoader):
            return data, default_collate
        return data, pinning(dataset) if dataset.pin_memory else dataset.collate_fn

    def _batch_size_of(self, dataset: Any, batch_size: int | None) -> int:
        if isinstance(dataset, DataLoader):
            check_loader(dataset)
            batch_size = dataset.batch_size if batch_size is None else batch_size
        return check_batch_size(batch_size)

    def _is_shuffled(self, dataset: Any) -> bool:
        return not isinstance(dataset, DataLoader) or isinstance(dataset.sampler, RandomSampler)

    def _drops_last(self, dataset: Any) -> bool:
        return isinstance(dataset, DataLoader) and dataset.drop_last

    def _indices_of(
        self, dataset: Any, shuffle: bool | None, seed: int, epoch: int
    ) -> Sequence[Any] | None:
        if not isinstance(dataset, DataLoader) or has_plain_order(dataset):
            return None
        if shuffle is not None:
            raise UsageError(
                f"batches(shuffle={shuffle}) of a DataLoader with a "
                f"{type(dataset.sampler).__name__}: samples come in its order, leave shuffle out"
            )
        return order_of_sampler(dataset, seed, epoch)

    def _read(
        self, dataset: Any, ledger: Ledger, rank: int, size: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        shares = ledger.shares(rank, size, batch_size)
        options = options_of(dataset) if isinstance(dataset, DataLoader) else {}
        sampler = (list(share.indices) for share in ledger.shares(rank, size, batch_size))
        loader = DataLoader(_data_of(dataset), batch_sampler=sampler, **options)
        with drawing:  # it takes a seed for its workers from the generator of all threads
            return zip(shares, loader, strict=True)

    def _before_step(self, share: Share) -> None:
        for step in self._steps:
            step.begin(None if self._step_samples is None else share)
        if self._step_samples is not None:
            return
        for optimizer in self._optimizers:
            if optimizer.op == Average:
                # Either all passes of a step have a weight or none, and any later one may be short.
                weighs = not share.is_full or optimizer.backward_passes_per_step > 1
                if weighs or optimizer.has_weight:
                    weight = share.samples if weighs else None
                    ReducingOptimizer.set_weight(optimizer, weight)


def _refuse_weight(weight: Any) -> None:
    """Refuse ``set_weight()`` of an optimizer that belongs to a Training."""
    raise UsageError(f"set_weight({weight!r:.80}): {_WEIGHS}")


class _Columns:
    """Arrays of one length, as a data set of rows."""

    def __init__(self, columns: tuple[Any, ...]) -> None:
        if len({len(column) for column in columns}) != 1:
            raise UsageError(f"arrays of {[len(column) for column in columns]} samples")
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(column[index] for column in self._columns)


def _data_of(dataset: Any) -> Any:
    if isinstance(dataset, DataLoader):
        return dataset.dataset
    if isinstance(dataset, tuple):
        if all(isinstance(column, torch.Tensor) for column in dataset):
            return TensorDataset(*dataset)
        return _Columns(dataset)
    return dataset
