"""A base of loaders of batches, and a mixin that reads ahead of whoever consumes them."""

from __future__ import annotations

import contextvars
import itertools
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from horovod.data.epoch_queue import EpochQueue
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_END = object()
# How long close_async_loader() waits for a thread that is busy in `_iterate`.
_CLOSING_S = 10.0


class _Raised:
    """The queue's entry for an exception of `_iterate`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class BaseDataLoader:
    """A loader of batches: derive from it, and write ``__len__`` and ``_iterate``.

    Each iteration over it is an epoch.
    """

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterable[Any]:
        """The batches of one epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Process a batch before it is returned; override it to move or convert the batch."""
        return batch


class AsyncDataLoaderMixin:
    """Reads batches on a thread of its own while others are being consumed.

    Write it before the loader: ``class Fast(AsyncDataLoaderMixin, Loader)``. The thread runs
    ``_iterate``, begins the next epoch as soon as one is read, and waits while the queue is full;
    ``_process_batch`` runs on the consumer's. An error of ``_iterate`` is raised where the batches
    are consumed, behind those that were read before it. Whoever leaves an epoch early gets a new
    one the next time.

    Args:
        async_loader_queue_size: how many batches may wait; 0 reads without a thread.
        debug_data_loader: print after each epoch how long it had to wait for batches.
        args, kwargs: of the loader.

    Raises:
        UsageError: the size is negative.

    Example:
        >>> class Loader(BaseDataLoader):
        ...     def __len__(self):
        ...         return 2
        ...     def _iterate(self):
        ...         yield from ("a", "b")
        >>> class Fast(AsyncDataLoaderMixin, Loader):
        ...     pass
        >>> loader = Fast(async_loader_queue_size=8)
        >>> list(loader)
        ['a', 'b']
        >>> loader.close_async_loader()
    """

    if TYPE_CHECKING:

        def _iterate(self) -> Iterable[Any]: ...

        def _process_batch(self, batch: Any) -> Any: ...

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if async_loader_queue_size < 0:
            raise UsageError(f"async_loader_queue_size={async_loader_queue_size} is negative")
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._queue: EpochQueue[Any] | None = None
        self._thread: threading.Thread | None = None
        self._epochs = itertools.count()
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            for batch in self._iterate():
                yield self._process_batch(batch)
            return
        queue = self._queue or self._start()
        epoch = next(self._epochs)
        queue.begin(epoch)
        try:
            for batch in self._batches(queue, epoch):
                yield self._process_batch(batch)
        finally:
            # Also if nobody wants the rest of this epoch.
            queue.begin(epoch + 1)

    def close_async_loader(self) -> None:
        """Ends the thread; call it when no more epochs are needed. A later iteration starts anew.

        Warns with a RuntimeWarning if the thread is still busy in ``_iterate`` after 10 seconds; it
        does not keep the process alive.
        """
        queue, thread = self._queue, self._thread
        self._queue = self._thread = None
        if queue is None or thread is None:
            return
        queue.close()
        if thread is threading.current_thread():
            return
        thread.join(_CLOSING_S)
        if thread.is_alive():
            warnings.warn(
                f"the thread of {type(self).__name__} is busy in _iterate, and was left behind",
                RuntimeWarning,
                stacklevel=2,
            )

    def _start(self) -> EpochQueue[Any]:
        queue: EpochQueue[Any] = EpochQueue(self.async_loader_queue_size)
        self._epochs = itertools.count()
        self._thread = threading.Thread(
            # The script may ask for its rank while it reads.
            target=contextvars.copy_context().run,
            args=(self._read, queue),
            name=f"{type(self).__name__} reads",
            daemon=True,
        )
        self._queue = queue
        self._thread.start()
        return queue

    def _batches(self, queue: EpochQueue[Any], epoch: int) -> Iterator[Any]:
        """The batches of an epoch, as the thread has read them."""
        waited_s = 0.0
        for count in itertools.count():
            started = time.monotonic()
            item = queue.get(epoch)
            waited_s += time.monotonic() - started
            if isinstance(item, _Raised):
                raise item.error
            if item is _END:
                self._tell(f"epoch {epoch}: {count} batches, waited {waited_s:.3f} s for them")
                return
            yield item

    def _tell(self, text: str) -> None:
        if self.debug_data_loader:
            print(f"{type(self).__name__}: {text}", file=sys.stderr, flush=True)

    def _read(self, queue: EpochQueue[Any]) -> None:
        """Read epoch after epoch on the thread, until the loader is closed."""
        for epoch in itertools.count():
            if queue.closed:
                return
            try:
                self._read_epoch(queue, epoch)
            except BaseException as error:
                queue.put(epoch, _Raised(error))
                # Not before it was raised where the batches are consumed.
                queue.wait_for_end_of(epoch)

    def _read_epoch(self, queue: EpochQueue[Any], epoch: int) -> None:
        batches = iter(self._iterate())
        try:
            for batch in batches:
                if not queue.put(epoch, batch):
                    return
            queue.put(epoch, _END)
        finally:
            if close := getattr(batches, "close", None):
                close()
