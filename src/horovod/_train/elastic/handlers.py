"""Handlers that keep and send one object of a state, shared by all frameworks."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from horovod._train.elastic.checkpoint.data import NoDataError
from horovod._train.object_functions import broadcast_object

if TYPE_CHECKING:
    from collections.abc import Callable


_send = partial(broadcast_object, name="elastic.state_dict")


@runtime_checkable
class HasStateDict(Protocol):
    """An object that keeps its state in a dict, for example a learning rate scheduler."""

    def state_dict(self) -> Any:
        """Its state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Takes over a state."""


class StateHandler:
    """Keeps one object of a state, and sends it to all ranks.

    Args:
        value: the object.

    Attributes:
        value: see above.
        root: the rank whose object :meth:`sync` sends.
    """

    root = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def prepare(self) -> None:
        """Brings here what a snapshot needs of other ranks; nothing by default.

        Called on all ranks together, before any handler takes a snapshot, and before a change of
        the job, while all ranks are there.

        Raises:
            HorovodInternalError: a rank was lost.
        """

    def save(self) -> None:
        """Takes a snapshot; not collective."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the last snapshot."""
        raise NotImplementedError

    def sync(self) -> None:
        """Sends the object of the root as it is now to all ranks; collective.

        Takes no snapshot: the state does when all of it has arrived, as a rank may be lost before.
        """
        raise NotImplementedError

    def snapshot(self) -> Any:
        """The last snapshot as data that nobody changes any more, for a file.

        Data are numbers, texts, bytes, collections of Python, arrays and tensors.
        """
        kind = type(self).__name__
        raise NoDataError(
            f"a {type(self.value).__name__}, whose {kind} has no snapshot() and load()"
        )

    def load(self, snapshot: Any) -> None:
        """Brings the object to what :meth:`snapshot` returned in an earlier job, and keeps it.

        Raises:
            ValueError: or any other error, if it is that of another object.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the size or the rank has changed, before any sync; nothing by default."""

    def set_value(self, value: Any) -> None:
        """Replaces the object, and takes a snapshot."""
        self.value = value
        self.save()


class SavingHandler(StateHandler):
    """Keeps what :meth:`save` has assigned to ``_saved``; takes the first snapshot at once."""

    _saved: Any

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def snapshot(self) -> Any:
        return self._saved

    def load(self, snapshot: Any) -> None:
        self._saved = snapshot
        self.restore()


class StateDictHandler(SavingHandler):
    """Keeps an object by its ``state_dict()``; the object itself stays where it is on every rank.

    Args:
        value: the object.
        bcast_object: sends an object of a rank to all.
    """

    def __init__(
        self, value: HasStateDict, bcast_object: Callable[[Any, int], Any] = _send
    ) -> None:
        self._bcast_object = bcast_object
        super().__init__(value)

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy: optimizers keep the tensors that they are given.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(self._bcast_object(self.value.state_dict(), self.root))
