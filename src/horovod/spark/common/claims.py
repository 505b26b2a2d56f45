"""Claim folders of a store, so that no other process writes into them.

On a local disk, also one of NFS, a folder belongs to the process that holds the lock of a file next
to it; the lock ends with the process. Elsewhere, a process writes a file with an unguessable name
into a folder next to it, and then lists that folder: of several at once, at most one sees no other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsspec import AbstractFileSystem


class Hold(Protocol):
    """A folder that nobody else has."""

    def close(self) -> None:
        """Give it up."""

    def forget(self) -> None:
        """Release it without taking it from the parent of this process."""


class Claims:
    """The folders that this process holds, each for a number. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, Hold]] = {}

    def take(
        self, paths: Sequence[str], number: int, storage_options: Mapping[str, object] | None
    ) -> bool:
        """Take all of some folders, or none.

        Args:
            paths: URLs of the folders.
            number: for what; folders that are held for the same one are taken already.
            storage_options: of fsspec, for the URLs.

        Returns:
            Whether this process has all of them, for this number.

        Raises:
            OSError: a folder cannot be reached.
        """
        taken: dict[str, tuple[int, Hold]] = {}
        with self._lock:
            try:
                for path in dict.fromkeys(paths):
                    if path in self._held:
                        if self._held[path][0] != number:
                            return False
                        continue
                    hold = held(path, storage_options)
                    if hold is None:
                        return False
                    taken[path] = (number, hold)
                self._held |= taken
                taken = {}
                return True
            finally:
                for _, hold in taken.values():
                    hold.close()

    def close(self) -> None:
        """Give up all folders; what is in them stays."""
        with self._lock:
            for _, hold in self._held.values():
                with suppress(Exception):  # the process may be about to end
                    hold.close()
            self._held.clear()

    def forget(self) -> None:
        """Leave all folders to the process of which this one is a fork."""
        for _, hold in self._held.values():
            hold.forget()
        self._held.clear()


def held(url: str, storage_options: Mapping[str, object] | None) -> Hold | None:
    """Take a folder, which need not exist.

    Args:
        url: of the folder.
        storage_options: of fsspec, for the URL.

    Returns:
        None if somebody else has it.
    """
    fs, inside = url_to_fs(url, **(storage_options or {}))
    folder, _, name = inside.rstrip("/").rpartition("/")
    if isinstance(fs, LocalFileSystem):
        fs.makedirs(folder, exist_ok=True)
        try:
            return _locked(f"{folder}/.{name}.lock")
        except OSError as error:
            # A mounted file system may have no locks, each in its own words.
            if error.errno == errno.ELOOP:
                raise
    return announced(fs, f"{folder}/.{name}.owners")


class _Lock:
    """A lock of the system, which ends with the process at the latest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def forget(self) -> None:
        os.close(self._descriptor)  # the lock is also that of the parent, which keeps it


def _locked(path: str) -> Hold | None:
    try:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
    except PermissionError:
        if os.path.exists(path):  # it is another user's
            return None
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return _Lock(descriptor)


class Announcement:
    """A file whose name announces that a process wants a folder.

    Args:
        fs: of fsspec.
        folder: of all such files of a folder.
    """

    def __init__(self, fs: Any, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._name = secrets.token_hex(16)
        fs.makedirs(folder, exist_ok=True)
        fs.pipe_file(f"{folder}/{self._name}", self._name.encode())

    def is_alone(self) -> bool:
        """Whether nobody else has left a file."""
        self._fs.invalidate_cache()
        found = self._fs.ls(self._folder, detail=False)
        names = {posixpath.basename(str(each).rstrip("/")) for each in found}
        return {name for name in names if name} == {self._name}

    def close(self) -> None:
        """Remove the file."""
        self._fs.rm_file(f"{self._folder}/{self._name}")

    def forget(self) -> None:
        """Leave the file to the parent of this process."""


def announced(fs: AbstractFileSystem, folder: str) -> Hold | None:
    """Take a folder by such a file; return None if others want it, too."""
    mine = Announcement(fs, folder)
    try:
        if mine.is_alone():
            return mine
    except BaseException:
        mine.close()
        raise
    mine.close()
    return None
