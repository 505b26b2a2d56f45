"""Folders for files of commits: a directory of this host, or a URL of fsspec."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from horovod._base import files
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOCAL = ("file://", "local://")
# The folder may hold other files of the user.
_PART_OF_COMMIT = re.compile(rf"(?:state\d+-)?commit-\d+\..+{re.escape(files.PART)}")
_WHAT = "--checkpoint-dir (HOROVOD_CHECKPOINT_DIR)"


class Folder(ABC):
    """Holds files by name. Raises OSError, or what fsspec raises.

    Attributes:
        url: where it is, for people.
    """

    url: str

    @abstractmethod
    def names(self) -> list[str]:
        """All that is there; nothing if there is no folder yet."""

    @abstractmethod
    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        """Makes a file that does not appear before all of it is written, if that is possible.

        Args:
            name: replaces a file of this name.
            fill: writes the contents.
        """

    @abstractmethod
    def reading(self, name: str) -> Any:
        """A context with a stream for reading and the size of the file in bytes."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file."""

    def remove_parts(self) -> bool:
        """Remove files that writers of other processes left unfinished; return whether any was.

        There is one writer; others before it have died.
        """
        return False


class LocalFolder(Folder):
    """A directory."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._path = Path(path)

    def names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        with files.writing_whole(self._path / name, syncs=True) as stream:
            fill(stream)
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system can do it
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.remove_parts()

    def remove_parts(self) -> bool:
        found = False
        for name in self.names():
            if _PART_OF_COMMIT.fullmatch(name) and files.part_of_process() not in name:
                with suppress(OSError):
                    (self._path / name).unlink()
                    found = True
        return found

    @contextmanager
    def reading(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        with (self._path / name).open("rb") as stream:
            yield stream, os.fstat(stream.fileno()).st_size

    def remove(self, name: str) -> None:
        (self._path / name).unlink()


class RemoteFolder(Folder):
    """A folder that fsspec reaches.

    In an object store a file appears when it is complete; elsewhere an incomplete one shows by its
    contents.
    """

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self.url = url
        self._fs = fs
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        self._fs.makedirs(self._path, exist_ok=True)
        where = f"{self._path}/{name}"
        try:
            with self._fs.open(where, "wb") as stream:
                fill(stream)
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(where)
            raise

    @contextmanager
    def reading(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        where = f"{self._path}/{name}"
        with self._fs.open(where, "rb") as stream:
            yield stream, self._fs.size(where)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"{self._path}/{name}")


def open_folder(url: str) -> Folder:
    """The folder of a path or URL; it need not exist yet.

    Raises:
        StartError: the URL needs what is not installed, or makes no sense.
    """
    for scheme in _LOCAL:
        if url.startswith(scheme):
            return LocalFolder(url.removeprefix(scheme))
    if "://" not in url:
        return LocalFolder(url)
    try:
        # Only for those who use it.
        from fsspec.core import url_to_fs
    except ImportError:
        raise StartError(
            f"{_WHAT} is {url}, which needs fsspec: pip install fsspec, and what it needs for this "
            "kind of URL, for example s3fs or gcsfs; or give a path"
        ) from None
    try:
        fs, path = url_to_fs(url)
    except Exception as error:  # of any file system
        raise StartError(
            f"{_WHAT} is {url}, which cannot be reached: {type(error).__name__}: {error}"
        ) from error
    return RemoteFolder(url, fs, path)
