"""The simple way of elastic training: loops that go on where the job is after every change.

What may be repeated, and why nothing else must be: docs/decisions/0035.
"""

from __future__ import annotations

import functools
import logging
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._train.elastic.changes import RanksDifferError, agree_at_boundary
from horovod._train.elastic.global_batch import GlobalBatch, check_global_batch
from horovod._train.elastic.leaving import leave_politely
from horovod._train.elastic.ledger import Ledger
from horovod._train.elastic.position import Position, Values
from horovod._train.elastic.run import Rounds, is_recoverable, rejoin
from horovod._train.elastic.stream import stream_shares
from horovod._train.shard.shard import Shard
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from horovod._train.elastic.ledger import Share
    from horovod._train.elastic.state import ObjectState

    Stream = tuple[Iterable[Any], Callable[[list[Any]], Any]]

_logger = logging.getLogger(__name__)


class ElasticLoop(ABC):
    """Epochs and batches of a job whose ranks come and go; adapters say what a batch is.

    Args:
        state: of the model and all else; the training tracks in it where the program is.
        commit_every_s: how old the last commit may be when a step ends, in seconds; 0 commits
            after each step.
        translating: a context in which errors of a framework become those of Horovod.
        reset: leaves the job and joins its next generation.

    Attributes:
        values: what :meth:`track` was told.
        samples: how many of the last batch count on this rank: all, or 0 if it has only samples of
            other ranks.
        ends_step: whether the optimizer takes its step with this batch. It does with each batch,
            except where ``batches(global_batch=...)`` takes several of them for a step.

    Raises:
        UsageError: the time is negative.
    """

    def __init__(
        self,
        state: ObjectState,
        commit_every_s: float = 10.0,
        translating: Callable[[], AbstractContextManager[object]] = nullcontext,
        reset: Callable[[], object] = rejoin,
    ) -> None:
        if commit_every_s < 0:
            raise UsageError(f"commit_every_s={commit_every_s} is negative")
        self.values = Values()
        self.samples = 0
        self._ends_step = True
        self._state = state
        self._commit_every_s = commit_every_s
        self._committed_at_s = time.monotonic()
        self._position = Position()
        state._track("training_values", self.values)
        # Sent last: who has the position of another rank has all that belongs to it.
        state._track("training_position", self._position)
        self._translating = translating
        self._rounds = Rounds(
            state,
            reset,
            progress=lambda: self._position.progress,
            translating=translating,
        )
        self._has_begun = False
        self._epoch = 0
        self._loops = 0
        # Of the loops of this epoch that the program has come to.
        self._loop_names: set[str] = set()
        self._in_epochs = False
        # Of the samples of the loop that the program is in.
        self._digest = 0
        # Of what must be the same on all ranks of this job in this loop.
        self._agreed = 0
        # The loop that the program is in, or was in last.
        self._running: object = None
        self._global_batch = GlobalBatch()
        # Of the loop that the program is in; None if a step has batch_size samples of each rank.
        self._step_samples: int | None = None
        # Whether a loop before had one.
        self._keeps_global_batch = False
        # What was lost in the step that is being taken, if something was.
        self._loss: HorovodInternalError | None = None

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer takes its step with this batch."""
        return self._ends_step

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs that are left: 0 to ``number`` - 1 in a job that is new.

        Raises:
            UsageError: a loop over other epochs has not ended.
            StartError: ranks were lost, and there is no other generation of the job.
            Dismissed: the job goes on without this worker, whose process ends with code 0.
        """
        if self._in_epochs:
            raise UsageError(
                "epochs() inside of a loop over other epochs(), or after a loop that was left by "
                "break while a variable holds its epochs(): run one loop over epochs() at a time"
            )
        with ExitStack() as stack:
            self._in_epochs = True
            stack.callback(setattr, self, "_in_epochs", False)
            stack.enter_context(leave_politely())
            stack.enter_context(self._rounds)
            self._begin()
            while self._position.epoch < number:
                self._epoch, self._loops, self._running = self._position.epoch, 0, None
                self._loop_names = set()
                yield self._epoch
                has_gone_back = self._heal()
                if self._position.epoch != self._epoch:
                    # Others are ahead. What the end of this epoch has changed, they had before.
                    self._state.restore()
                elif not (has_gone_back and self._position.in_loop):
                    self._position.next_epoch()
                    self._save()

    def batches(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        shuffle: bool | None = None,
        seed: int = 0,
        name: str | None = None,
        global_batch: int | None = None,
    ) -> Iterator[Any]:
        """This rank's batches of what is left of the epoch.

        Each sample of an epoch is in one batch of one rank, whichever ranks there are. At the end
        some ranks may have fewer samples than others, and their gradients weigh less; a rank for
        which none is left gets samples of others, and its gradients have no weight.

        Args:
            dataset: the same on all ranks.
            batch_size: samples per rank; with ``global_batch``, the most samples in a batch.
            shuffle: whether each epoch has an order of its own; True by default, except for data
                that comes in an order that it has itself.
            seed: of the orders, the same on all ranks.
            name: of this loop in the epoch, the same on all ranks; None counts them.
            global_batch: how many samples all ranks together have in a step of the optimizer,
                whatever their number. Each rank takes its share of them in as many batches as it
                needs, all ranks in equally many; with the last of them, where :attr:`ends_step` is
                true, the optimizer takes a step by the mean over all these samples. The last step
                of an epoch has the samples that are left. None for ``batch_size`` of each rank.

        Raises:
            UsageError: an argument is wrong, another loop of the epoch has the name, or ranks have
                different data, orders of it or batch sizes.
            StartError, Dismissed: see :meth:`epochs`.
        """
        if isinstance(dataset, Shard):
            raise UsageError("batches() of a shard: give the data set itself, which is divided")
        self._use_global_batch(dataset, global_batch)
        self._begin()
        self._heal()
        loop = self._name_of_loop(name)
        size = self._batch_size_of(dataset, batch_size)
        drop_last = self._drops_last(dataset)
        stream = self._stream_of(dataset, self._epoch)
        if stream is not None:
            if shuffle:
                raise UsageError(
                    f"batches() of {type(dataset).__name__}: samples without places come in the "
                    "order that they have, leave shuffle out"
                )
            read = functools.partial(self._read_stream, stream, drop_last)
            yield from self._loop(loop, read, size)
            return
        indices = self._indices_of(dataset, shuffle, seed, self._epoch)
        ledger = Ledger(
            self._length_of(dataset) if indices is None else len(indices),
            shuffle=self._is_shuffled(dataset) if shuffle is None else shuffle,
            seed=seed,
            indices=indices,
            drop_last=drop_last,
            global_batch=global_batch,
        )
        ledger.begin(self._epoch)
        yield from self._loop(
            loop, functools.partial(self._read_places, dataset, ledger), size, ledger
        )

    def track(self, **values: Any) -> Values:
        """Values of the program that go back to the last commit when training does.

        After a change that sends the state, all ranks have those of the rank that sends it, so
        they are right where they are the same on all ranks.

        Args:
            values: names and first values; those that are there already stay.

        Returns:
            An object with these attributes: ``values.loss += loss.item()``.
        """
        for name, value in values.items():
            if name not in vars(self.values):
                setattr(self.values, name, value)
        return self.values

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A context that ends silently if a rank is lost inside; training then goes back.

        Put what communicates in the body of a loop into it, except steps of the optimizer.
        """
        try:
            with self._translating():
                yield
        except HorovodInternalError as error:
            self._lose(error)

    def _use_global_batch(self, dataset: Any, global_batch: int | None) -> None:
        check_global_batch(global_batch)
        if global_batch is not None:
            self._check_accumulates(dataset)
        self._step_samples = global_batch

    def _begin(self) -> None:
        if not self._has_begun:
            self._rounds.begin()
            self._committed_at_s = time.monotonic()
            self._has_begun = True

    def _lose(self, error: HorovodInternalError) -> None:
        """Remembers that this step cannot be finished; raises what no round can heal."""
        if not is_recoverable(error):
            raise error
        self._loss = self._loss or error

    def _heal(self) -> bool:
        """Follows a change outside of the steps, if there was one."""
        if self._loss is None:
            return False
        self._follow(self._loss)
        return True

    def _follow(self, error: HorovodInternalError | HostsUpdatedInterrupt) -> None:
        self._rounds.follow(error)
        self._loss = None
        self._committed_at_s = time.monotonic()

    def _save(self) -> None:
        self._state.save()
        self._state._write_commit()
        self._committed_at_s = time.monotonic()

    def _name_of_loop(self, name: str | None) -> str:
        loop = f"loop {self._loops}" if name is None else name
        self._loops += 1
        if loop in self._loop_names:
            raise UsageError(
                f"batches(name={loop!r}) a second time in epoch {self._epoch}: its samples are "
                "done; give each loop of an epoch a name of its own, or give no names"
            )
        self._loop_names.add(loop)
        return loop

    def _enter(self, loop: str, ledger: Ledger | None) -> bool:
        """Comes to a loop; returns whether something is left of it."""
        position = self._position
        self._digest = 0 if ledger is None else ledger.digest
        if position.epoch != self._epoch:
            return False
        if position.has_begun(loop):
            # Others were here before. What the program has changed on its way is in their state.
            self._state.restore()
            if position.is_over(loop):
                return False
            if ledger is not None and position.digest(loop) not in (None, self._digest):
                raise self._order_differs(loop)
            return True
        position.begin(loop, None if ledger is None else self._digest)
        if ledger is not None and ledger.length == 0:
            position.end(loop)
        self._save()
        return not position.is_over(loop)

    def _loop(
        self,
        loop: str,
        read: Callable[[int, int], Iterator[tuple[Share, Any]]],
        batch_size: int,
        ledger: Ledger | None = None,
    ) -> Iterator[Any]:
        position = self._position
        if not self._enter(loop, ledger):
            return
        running = self._running = object()
        self._expect_agreement(batch_size, drops_last=ledger is not None and ledger.drop_last)
        try:
            while position.epoch == self._epoch and not position.is_over(loop):
                is_empty = True
                self._report_global_batch(batch_size)
                for share, batch in read(position.consumed(loop), batch_size):
                    is_empty = False
                    self._begin_pass(share)
                    yield batch
                    if self._running is not running:
                        raise UsageError("batches() inside of a loop over other batches()")
                    if not self._end_pass(loop, share):
                        break
                if is_empty:  # which a stream does not tell before
                    self._report_no_steps(loop, ledger, batch_size)
                    position.end(loop)
                    self._save()
        except GeneratorExit:
            if self._running is running:
                self._leave(loop)
            raise
        finally:
            if self._running is running:
                self._end_passes()

    def _begin_pass(self, share: Share) -> None:
        self.samples = share.samples
        self._ends_step = share.ends_step
        self._before_step(share)

    def _end_pass(self, loop: str, share: Share) -> bool:
        """Comes to the end of a batch; returns whether the next one is as was planned."""
        # After a loss the passes that are left of the step would be for nothing.
        return self._after_step(loop, share) if share.ends_step or self._loss is not None else True

    def _end_passes(self) -> None:
        """Comes out of a loop: what follows is in no step."""
        self._ends_step = True

    def _expect_agreement(self, batch_size: int, *, drops_last: bool = False) -> None:
        """Let the ranks check after each step that they divide the same samples alike."""
        agreed = (self._digest, batch_size, drops_last, self._step_samples)
        self._agreed = zlib.crc32(repr(agreed).encode())

    def _report_global_batch(self, batch_size: int) -> None:
        size = context.size()
        if self._step_samples is None and self._keeps_global_batch:
            return  # a loop that evaluates: the next one that trains says it
        self._keeps_global_batch = self._step_samples is not None
        # A newcomer may be rank 0, and has the number of ranks before from the others.
        self._global_batch.expect(self._position.ranks)
        self._position.ranks = size
        line = self._global_batch.change(size, batch_size, self._step_samples)
        if line is not None and context.rank() == 0:
            _logger.warning("%s", line)

    def _report_no_steps(self, loop: str, ledger: Ledger | None, batch_size: int) -> None:
        if ledger is not None and ledger.drop_last and not self._position.consumed(loop):
            full = f"{context.size()} ranks x batch_size={batch_size}"
            _logger.warning(
                "rank %d: drop_last leaves no step of %s in epoch %d: %d samples are fewer than %s",
                context.rank(),
                loop,
                self._epoch,
                ledger.length,
                full if self._step_samples is None else f"global_batch={self._step_samples}",
            )

    def _order_differs(self, loop: str) -> UsageError:
        return UsageError(
            f"rank {context.rank()}, {loop} of epoch {self._epoch}: the ranks, or this job and the "
            "one before, have different data or orders of it, or the ranks have different batch "
            "sizes: give the same data, seed, batch_size and global_batch on all ranks; a sampler "
            "must yield the same indices on all of them, in each epoch"
        )

    def _read_places(
        self, dataset: Any, ledger: Ledger, consumed: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        ledger.consumed = consumed
        return self._read(dataset, ledger, context.rank(), context.size(), batch_size)

    def _read_stream(
        self, stream: Stream, drop_last: bool, consumed: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        samples, collate = stream
        ranks = context.rank(), context.size()
        shares = stream_shares(
            samples,
            consumed,
            *ranks,
            batch_size,
            drop_last=drop_last,
            global_batch=self._step_samples,
        )
        for share, mine in shares:
            yield share, collate(mine)

    def _after_step(self, loop: str, share: Share) -> bool:
        """Comes to the end of a step; returns whether the next one is as was planned."""
        try:
            if self._loss is not None:
                raise self._loss
            self._position.advance(loop, share.consumed)
            is_last = share.is_last
            is_old = time.monotonic() - self._committed_at_s >= self._commit_every_s
            change, commits = agree_at_boundary(commits=is_last or is_old, digest=self._agreed)
            if is_last:
                self._position.end(loop)
            if change is not None:
                self._state._prepare()
            worker = context.elastic_worker()
            if commits or (worker is not None and worker.leaving):  # all may be leaving
                self._save()
            if change is None:
                return True
            ended: HostsUpdatedInterrupt | HorovodInternalError
            ended = HostsUpdatedInterrupt(not change.needs_sync)
        except RanksDifferError:
            raise self._order_differs(loop) from None
        except (HostsUpdatedInterrupt, HorovodInternalError) as error:
            ended = error
        # An error that is raised there is no consequence of what has ended the round.
        self._follow(ended)
        return False

    def _leave(self, loop: str) -> None:
        """The program breaks out of a loop."""
        position = self._position
        if self._loss is None and position.epoch == self._epoch and not position.is_over(loop):
            position.end(loop)
            # Not into a file: it may be an error of the program that ends the loop.
            self._state.save()
            self._committed_at_s = time.monotonic()

    @abstractmethod
    def _check_accumulates(self, dataset: Any) -> None:
        """Lets the optimizers take a step for several batches of a data set.

        Raises:
            UsageError: they cannot.
        """

    @abstractmethod
    def _length_of(self, dataset: Any) -> int:
        """The number of samples."""

    @abstractmethod
    def _batch_size_of(self, dataset: Any, batch_size: int | None) -> int:
        """The number of samples per rank and step."""

    def _stream_of(self, dataset: Any, epoch: int) -> Stream | None:
        """Data without places: its samples, and what makes a batch of some; None for other data.

        Raises:
            UsageError: it cannot be read as often as is needed.
        """
        return None

    def _is_shuffled(self, dataset: Any) -> bool:
        """Whether each epoch has an order of its own if nothing was said."""
        return True

    def _drops_last(self, dataset: Any) -> bool:
        """Whether a last step is left out in which some rank would have fewer samples."""
        return False

    def _indices_of(
        self, dataset: Any, shuffle: bool | None, seed: int, epoch: int
    ) -> Sequence[Any] | None:
        """The samples of an epoch in the order that the data has itself; None if it has none.

        Raises:
            UsageError: the order cannot be followed, or ``shuffle`` asks for another one.
        """
        return None

    @abstractmethod
    def _read(
        self, dataset: Any, ledger: Ledger, rank: int, size: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        """The batches of a rank, in the order of the ledger; may read ahead."""

    @abstractmethod
    def _before_step(self, share: Share) -> None:
        """Prepares the step, or the pass of one, of a batch that is handed out next."""


def check_batch_size(batch_size: int | None) -> int:
    """Return the samples per rank and step; UsageError if there is no such number."""
    if batch_size is None or batch_size < 1:
        raise UsageError(f"batch_size={batch_size}: say how many samples a rank has in a step")
    return batch_size


def check_iterable(dataset: object, other_kinds: str) -> None:
    """Refuse data that cannot be read from its beginning again; name ``other_kinds`` to give."""
    name = type(dataset).__name__
    if not isinstance(dataset, Iterable):
        raise UsageError(f"batches() of {name}: {other_kinds}")
    if isinstance(dataset, Iterator):
        raise UsageError(
            f"batches() of {name}: an iterator can be read once only, but after a change ranks "
            "read from the beginning; give an object with __iter__"
        )
