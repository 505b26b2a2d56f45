"""Writing to any file system of fsspec so that nobody sees half a file."""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem

from horovod._base import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

# Here a file appears when all of it is there.
_OBJECT_STORES = frozenset(
    ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "memory", "hf")
)


def write_atomically(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    """Replaces a file, and makes its folder if there is none.

    Args:
        fs: of fsspec.
        path: as the file system knows it.
        data: all of the file.
    """
    with _replacing(fs, path) as part:
        fs.pipe_file(part, data)


def write_new(fs: AbstractFileSystem, path: str, data: bytes) -> bool:
    """Write a file that does not exist, and make its folder if there is none.

    On a local disk, only one of several writers succeeds. Elsewhere all of those may that look in
    the same moment; the file then is that of the last one.

    Args:
        fs, path, data: as of :func:`write_atomically`.

    Returns:
        Whether there was no such file.
    """
    if not isinstance(fs, LocalFileSystem):
        if fs.exists(path):
            return False
        write_atomically(fs, path, data)
        return True
    folder, _, name = path.rpartition("/")
    fs.makedirs(folder, exist_ok=True)
    part = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
    try:
        fs.pipe_file(part, data)
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError:  # the file system has no links
        return _create_by_open(path, data)
    finally:
        Path(part).unlink(missing_ok=True)
    return True


def _create_by_open(path: str, data: bytes) -> bool:
    try:
        file = files.create(path)
    except FileExistsError:
        return False
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
    return True


def upload_atomically(fs: AbstractFileSystem, source: str, path: str) -> None:
    """Replaces a file by a local one, and makes its folder if there is none."""
    with _replacing(fs, path) as part:
        if isinstance(fs, LocalFileSystem):
            shutil.copyfile(source, part)
        else:
            fs.put_file(source, part)


@contextmanager
def _replacing(fs: Any, path: str) -> Iterator[str]:
    """Yield a temporary path for the content of a future file."""
    folder, _, name = path.rpartition("/")
    fs.makedirs(folder, exist_ok=True)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & _OBJECT_STORES:
        yield path
        return
    part = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
    try:
        yield part
        _rename(fs, part, path)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(part)
        raise


def _rename(fs: Any, part: str, path: str) -> None:
    if isinstance(fs, LocalFileSystem):
        Path(part).replace(path)
        return
    # Arrow replaces files of HDFS in two steps: for a moment there is none.
    fs.mv(part, path)
