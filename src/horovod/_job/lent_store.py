"""Lets ranks meet over a key-value store that another program lends: the stores of PyTorch.

Such a store has no authentication of its own. So on one host nothing secret enters it: it only
carries the name of a socket, over which the kernel tells who the other end is
(:mod:`horovod._rendezvous.same_user`). Between hosts it carries the secret of the job, unless the
user gave all ranks one (HOROVOD_SECRET_KEY or HOROVOD_SECRET_FILE).
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from horovod._rendezvous.interfaces import is_loopback
from horovod._rendezvous.local import make_unix_name
from horovod._rendezvous.roster import host_key
from horovod._rendezvous.same_user import PAUSE_S, SameUserDoor, ask_same_user
from horovod.errors import StartError

if TYPE_CHECKING:
    from typing import Any


class LentStore(Protocol):
    """The methods of ``torch.distributed.Store`` that are needed; a PrefixStore has them, too."""

    def set(self, key: str, value: str, /) -> object:
        """Stores a value; replaces an older one."""

    def get(self, key: str, /) -> bytes:
        """Returns a value; waits until there is one."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Waits until all keys exist; RuntimeError if they do not in time."""

    def delete_key(self, key: str, /) -> object:
        """Deletes a key."""


class Meeting(Protocol):
    """Ranks that are about to find each other, and a way to bring one text to all of them."""

    @property
    def one_host(self) -> bool:
        """Whether all ranks are certainly on one host, as one user."""

    def share(self, text: str | None, deadline: float) -> str:
        """Brings a text of rank 0 to all ranks; the others give None.

        Raises:
            StartError: it did not come in time.
        """

    def forget(self) -> None:
        """Once all have met, or failed to: removes what others could read. Idempotent."""

    def close(self) -> None:
        """At the end of the job. Idempotent."""


class StoreMeeting:
    """A meeting of all ranks over a lent store; every rank of the job makes one.

    Waits until all have come.

    Args:
        store: the same on all ranks.
        prefix: of the keys; new for each meeting, and the same on all ranks.
        rank, size: of this process.
        deadline: in ``time.monotonic()``.
        token: names an engine that this process already has; empty for none.
        is_local: whether the ranks must be on one host, as one user: nothing that other users
            could write into the store, or read from it, is then followed, or written.

    Attributes:
        shared: the token of rank 0; empty if it starts a new engine.
        one_host: whether all ranks are on one host, as one user.

    Raises:
        StartError: a rank did not come in time, or the store was lost.
    """

    def __init__(
        self,
        store: LentStore,
        prefix: str,
        rank: int,
        size: int,
        deadline: float,
        token: str = "",
        *,
        is_local: bool = False,
    ) -> None:
        self._is_local = is_local
        self._store, self._prefix = store, prefix
        self._rank, self._size = rank, size
        self._what = f"the job of {size} ranks"
        self._door: SameUserDoor | None = None
        self._is_over = False
        place = f"{host_key(os.uname().nodename)}/{os.geteuid()}"
        self._set(f"here/{rank}", place)
        if rank == 0:
            places = self._gather(deadline)
            if is_local and len(places) > 1:
                raise StartError(_not_local(f"ranks came from {len(places)} places"))
            opening = {"shared": token, "one_host": len(places) == 1}
            self._set("opening", json.dumps(opening))
        else:
            opening = self._object("opening", deadline)
        self.shared = str(opening.get("shared", ""))
        self.one_host = opening.get("one_host") is True

    def share(self, text: str | None, deadline: float) -> str:
        """Do the same as :meth:`Meeting.share`."""
        if text is None:
            return self._await_text(deadline)
        if self.one_host:
            name = make_unix_name()
            self._door = SameUserDoor(name, self._what)
            self._set("notice", json.dumps({"socket": name}))
            self._door.give(text, range(1, self._size), deadline)
        else:
            self._set("notice", json.dumps({"text": text}))
        return text

    def close(self) -> None:
        """Do the same as :meth:`Meeting.close`."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def forget(self) -> None:
        """Do the same as :meth:`Meeting.forget`."""
        self.close()
        if self._rank != 0 or self._is_over:
            return
        self._is_over = True
        with suppress(RuntimeError, OSError):  # the store may have ended before this job
            self._store.delete_key(f"{self._prefix}/notice")

    def _await_text(self, deadline: float) -> str:
        while True:
            notice = self._object("notice", deadline)
            if not (name := notice.get("socket")):
                if self._is_local:
                    raise StartError(_not_local("rank 0 published an address for several hosts"))
                return str(notice.get("text", ""))
            if text := ask_same_user(str(name), self._rank, self._what, deadline):
                return text
            if time.monotonic() + PAUSE_S >= deadline:
                raise StartError(f"rank 0 of {self._what} did not answer on this host in time")
            time.sleep(PAUSE_S)  # a job that was killed left the name, and rank 0 will replace it

    def _gather(self, deadline: float) -> set[str]:
        """Wait for all ranks, and return their hosts."""
        keys = [f"here/{rank}" for rank in range(self._size)]
        try:
            self._wait(keys, deadline)
        except StartError:
            missing = [str(rank) for rank, key in enumerate(keys) if not self._has(key)]
            raise StartError(
                f"rank {', '.join(missing[:16]) or '?'} of {self._size} never came to the store "
                "that the ranks share; look for its errors"
            ) from None
        return {self._get(key) for key in keys}

    def _has(self, key: str) -> bool:
        try:
            self._wait([key], time.monotonic() + 0.01)
        except StartError:
            return False
        return True

    def _object(self, key: str, deadline: float) -> dict[str, Any]:
        try:
            self._wait([key], deadline)
        except StartError as error:
            raise StartError(
                f"rank 0 of {self._size} published nothing for rank {self._rank} in the store "
                f"that the ranks share; look for the errors of rank 0 ({error})"
            ) from None
        with suppress(ValueError, RecursionError):
            found = json.loads(self._get(key))
            if isinstance(found, dict):
                return found
        raise StartError(f"rank 0 published something that makes no sense in {key!r}")

    def _wait(self, keys: list[str], deadline: float) -> None:
        left_s = max(0.001, deadline - time.monotonic())
        try:
            self._store.wait([f"{self._prefix}/{key}" for key in keys], timedelta(seconds=left_s))
        except (RuntimeError, OSError) as error:
            raise StartError(_first_line(error)) from error

    def _get(self, key: str) -> str:
        try:
            return self._store.get(f"{self._prefix}/{key}").decode("utf-8", "replace")
        except (RuntimeError, OSError) as error:
            raise StartError(f"the store that the ranks share: {_first_line(error)}") from error

    def _set(self, key: str, value: str) -> None:
        try:
            self._store.set(f"{self._prefix}/{key}", value)
        except (RuntimeError, OSError) as error:
            raise StartError(f"the store that the ranks share: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return an error of PyTorch without the stack of its native code."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_loopback_name(name: str) -> bool:
    """Whether a host, as a user names it, is the machine itself, whichever it is."""
    try:
        return name == "localhost" or is_loopback(name)
    except ValueError:
        return False


def _not_local(what: str) -> str:
    return (
        "the store that the ranks share is at a loopback address of this host, or "
        f"LOCAL_WORLD_SIZE says that all ranks are here, but {what}: give all ranks "
        "HOROVOD_SECRET_KEY or HOROVOD_SECRET_FILE, or an address as MASTER_ADDR that all hosts "
        "reach, and start them as one user"
    )
