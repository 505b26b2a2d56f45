"""The state of elastic training: what is kept at each commit, and sent to newcomers."""

from __future__ import annotations

import copy
import inspect
import logging
import threading
from collections import deque
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._train.elastic.changes import agree_on_changes
from horovod._train.elastic.checkpoint.commits import Snapshot
from horovod._train.elastic.checkpoint.data import NoDataError
from horovod._train.elastic.handlers import HasStateDict, StateDictHandler, StateHandler
from horovod.errors import HostsUpdatedInterrupt, StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horovod._train.elastic.checkpoint.commits import Commits

_logger = logging.getLogger(__name__)


class HostUpdateResult(IntFlag):
    """The kinds of changes of the hosts, as flags."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """The state of training. A class of yours has ``save``, ``restore`` and ``sync``.

    Args:
        bcast_object: returns the object of rank 0 on every rank, for example
            ``hvd.broadcast_object``; takes another rank as ``root_rank``.
        get_rank: returns this rank; not needed.
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int] | None = None
    ) -> None:
        self._bcast_object = bcast_object
        self._get_rank = get_rank
        self._reset_callbacks: list[Callable[[], object]] = []
        self._told = HostUpdateResult.no_update
        self._was_told = False
        self._told_lock = threading.Lock()
        self._sync_root = 0
        self._commits: Commits | None = None
        self._was_loaded = False

    @property
    def sync_root(self) -> int:
        """The rank whose values ``sync`` sends: one that has completed a sync, if one is left."""
        return self._sync_root

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions without arguments that run after each change of the job, in this order.

        They run on the ranks that were there before, not on newcomers, when ``hvd.size()`` is that
        of the changed job, and before ``sync``, which replaces what they set in the state by the
        values of the root. A collective in one needs its match in what newcomers run before the
        function that ``hvd.elastic.run`` wraps.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called after each change of the job: forgets what was told of it; runs the callbacks."""
        with self._told_lock:
            self._told, self._was_told = HostUpdateResult.no_update, False
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int = HostUpdateResult.mixed) -> None:
        """Lets the next check of all ranks end the round; for whoever knows of a change himself.

        Args:
            timestamp: not needed.
            update_res: what has changed; see :class:`HostUpdateResult`.
        """
        with self._told_lock:
            self._told |= HostUpdateResult(update_res)
            self._was_told = True

    def commit(self) -> None:
        """Saves the state, and looks for changes of the job; collective.

        Raises:
            HostsUpdatedInterrupt: the job changes.
            HorovodInternalError: a rank was lost.
        """
        self.save()
        self._write_commit()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Looks for changes of the job, the same on all ranks; collective, one small allreduce.

        Raises:
            HostsUpdatedInterrupt: the job changes.
            HorovodInternalError: a rank was lost.
        """
        with self._told_lock:
            told, was_told = self._told, self._was_told
            self._told, self._was_told = HostUpdateResult.no_update, False
        change = agree_on_changes(was_told=was_told, added=told != HostUpdateResult.removed)
        if change is not None:
            self._prepare()
            raise HostsUpdatedInterrupt(not change.needs_sync)

    def save(self) -> None:
        """Takes a snapshot in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the last snapshot."""
        raise NotImplementedError

    def sync(self) -> None:
        """Sends the values of :attr:`sync_root` to all ranks; collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to the new size and rank; nothing by default."""

    def _prepare(self) -> None:
        """Brings here what only other ranks have, while all ranks are there; collective."""

    def _samples_done(self) -> int:
        """Return how many samples all ranks have done, as far as something in the state counts
        them.
        """
        return 0

    def _tracks(self, value: object) -> bool:
        """Return whether a commit and a sync include an object; True if that is unknown."""
        return True

    def _write_commit(self) -> None:
        """Lets the commit that was just made be written into a file, if it is its turn."""
        if self._commits is not None:
            self._commits.made(self._snapshot, rank=context.rank())

    def _load_commit(self) -> None:
        """Goes to the commit in the newest file, once, if there is one.

        Raises:
            StartError: it cannot be read, or is that of another program.
        """
        if self._commits is None or self._was_loaded:
            return
        self._was_loaded = True
        if (found := self._commits.newest()) is not None:
            path, snapshot = found
            self._load(path, snapshot)
            _logger.info("training goes on from %s", path)

    def _snapshot(self) -> Snapshot:
        """Return what :meth:`save` has kept, as files may hold it.

        Raises:
            NoDataError: that is unknown.
        """
        raise NoDataError(f"the state is a {type(self).__name__}, which is no ObjectState")

    def _load(self, path: str, snapshot: Snapshot) -> None:
        """Goes to a snapshot, and keeps it as :meth:`save` does.

        Raises:
            StartError: it is that of another program.
        """
        raise NotImplementedError


class ObjectState(State):
    """A state of plain objects, which are attributes of it.

    An object with ``state_dict()`` and ``load_state_dict()`` stays the same object on every rank,
    and its state is kept and sent. Of any other a deep copy is kept; or the object itself, if it
    cannot be copied, or is a collection other than those of Python and arrays, such as a data set.

    Args:
        bcast_object, get_rank: see :class:`State`.
        kwargs: the attributes and their first values, the same names on all ranks.

    Raises:
        UsageError: an attribute would hide one of the state itself.

    Example:
        >>> state = ObjectState(hvd.broadcast_object, hvd.rank, epoch=0, batch=0)
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any],
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._handlers: dict[str, StateHandler] = {}
        self._saved: dict[str, Any] = {}
        self._tracked: list[str] = []
        for name, value in kwargs.items():
            self._track(name, value)

    def save(self) -> None:
        # All of it before the first snapshot: if a rank is lost here, all others are of one step.
        self._prepare()
        for handler in self._handlers.values():
            handler.save()
        self._saved = {name: copy_of(getattr(self, name)) for name in self._plain()}

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        for name, value in self._saved.items():
            self.__dict__[name] = copy_of(value)

    def sync(self) -> None:
        for name in self._tracked:
            if name in self._handlers:
                handler = self._handlers[name]
                handler.root = self.sync_root
                handler.sync()
        names = self._plain()
        if names:
            received = self._broadcast({name: getattr(self, name) for name in names})
            self.__dict__.update(received)
        # Not before all has arrived: half of a snapshot would be of another step.
        self.save()

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def _prepare(self) -> None:
        for handler in self._handlers.values():
            handler.prepare()

    def _samples_done(self) -> int:
        values = (handler.value for handler in self._handlers.values())
        return sum(int(getattr(value, "samples_done", 0)) for value in values)

    def _tracks(self, value: object) -> bool:
        return any(handler.value is value for handler in self._handlers.values())

    def _snapshot(self) -> Snapshot:
        kept = {name: handler.snapshot() for name, handler in self._handlers.items()}
        return Snapshot(kept, self._saved)

    def _load(self, path: str, snapshot: Snapshot) -> None:
        if snapshot.kept.keys() != self._handlers.keys():
            raise StartError(
                f"{path} holds {_listed(snapshot.kept)}, but the state has "
                f"{_listed(self._handlers)}: it is of another program; take another "
                "--checkpoint-dir, or remove it to begin anew"
            )
        for name, handler in self._handlers.items():
            try:
                handler.load(snapshot.kept[name])
            except Exception as error:  # of any framework
                raise StartError(
                    f"{path} does not fit state.{name}: {type(error).__name__}: {error}; take "
                    "another --checkpoint-dir, or remove it to begin anew"
                ) from error
        missing = set(self._plain()) - snapshot.plain.keys()
        if missing:
            _logger.warning("%s is without %s: they begin anew", path, _listed(missing))
        for name in snapshot.plain.keys() & set(self._plain()):
            self._saved[name] = snapshot.plain[name]
            self.__dict__[name] = copy_of(snapshot.plain[name])

    def _broadcast(self, obj: Any, root: int | None = None) -> Any:
        root = self.sync_root if root is None else root
        # Functions of users may know of no root.
        return self._bcast_object(obj, root_rank=root) if root else self._bcast_object(obj)

    def _handler_of(self, value: Any) -> StateHandler | None:
        """Return the handler of a value; None for a plain one. Adapters know more kinds."""
        if isinstance(value, HasStateDict) and not inspect.isclass(value):
            return StateDictHandler(value, self._broadcast)
        return None

    def _track(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in self.__dict__:
            raise UsageError(f"an attribute {name!r} would hide one of the state itself: rename it")
        self._tracked.append(name)
        object.__setattr__(self, name, value)
        handler = self._handler_of(value)
        if handler is None:
            self._saved[name] = copy_of(value)
        else:
            self._handlers[name] = handler

    def _plain(self) -> list[str]:
        return [name for name in self._tracked if name not in self._handlers]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None and value is not handler.value:
            handler.set_value(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"state.{name}" for name in sorted(names)) or "no objects"


# What may hold a whole data set is no progress of training.
_COPIED_COLLECTIONS = (str, bytes, bytearray, list, tuple, dict, set, frozenset, deque)


def copy_of(value: Any) -> Any:
    """Return a deep copy of a plain value, or the value itself if it cannot or should not be."""
    may_be_large = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    is_array = hasattr(value, "dtype")
    if may_be_large and not is_array and not isinstance(value, _COPIED_COLLECTIONS):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # of the classes of users: what holds a lock, a file, a generator
        return value
