"""Distinguish the data in a folder from all other data that were or will be there.

A preparation leaves a token in its folder. The mark of a folder that nobody has prepared follows
from its files. Ranks compare marks, so this loads nothing of Spark.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from horovod.errors import StartError
from horovod.spark.data.files import data_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem

METADATA_FILE = "_horovod_metadata.json"
"""Describes the data of a folder. Spark and readers of Parquet skip names with an underscore."""
VERSION = 2
"""Of that file."""


def said_of(fs: AbstractFileSystem, inside: str) -> Any:
    """Return what a preparation left in a folder; None if it left nothing, or the files changed.

    Args:
        fs: of fsspec.
        inside: the folder, as the file system knows it.
    """
    fs.invalidate_cache()
    try:
        said = json.loads(fs.cat_file(posixpath.join(inside.rstrip("/"), METADATA_FILE)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(said, dict) or said.get("version") != VERSION:
        return None
    return said if said["files"] == files_in(fs, inside) else None


def files_in(fs: AbstractFileSystem, inside: str) -> dict[str, int]:
    """Return the sizes of all files, by their names in the folder."""
    inside = inside.rstrip("/")
    found = data_files(fs, inside)
    return {name[len(inside) :].lstrip("/"): size for name, size in found.items()}


def mark_of(files: Mapping[str, int]) -> str:
    """Return the mark of a folder that nobody has prepared.

    Args:
        files: of :func:`files_in`.
    """
    return "files " + hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:16]


def check_mark(
    url: str, storage_options: Mapping[str, object] | None, mark: str, rank: int
) -> None:
    """Make sure that a folder holds the data that its mark is of.

    Args:
        url: of the folder.
        storage_options: of fsspec, for the URL.
        mark: what the driver found in the folder.
        rank: who looks, for messages.

    Raises:
        StartError: it holds other data.
    """
    fs, inside = url_to_fs(url, **(storage_options or {}))
    said = said_of(fs, inside)
    found = mark_of(files_in(fs, inside)) if said is None else said["token"]
    if found != mark:
        raise StartError(
            f"rank {rank}: the data in {url} are not those that this training was started for "
            f"(their mark is {found!r}, not {mark!r}): another program has written into the "
            "folder; give each program a store of its own, or call fit again"
        )
