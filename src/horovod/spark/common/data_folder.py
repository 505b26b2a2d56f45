"""What a folder of data holds: rows, bytes and columns, kept in a file of the folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod.spark.common import metadata
from horovod.spark.data.files import ParquetFiles, data_files
from horovod.spark.data.inspection import inspect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.spark.common.metadata import Column
    from horovod.spark.common.store import AbstractFilesystemStore

_VERSION = 2


@dataclass(frozen=True)
class DataFolder:
    """What is in a folder.

    Attributes:
        num_rows, num_bytes: of all files; bytes before compression.
        columns: metadata by name.
        token: which preparation wrote it; empty if none did.
    """

    num_rows: int
    num_bytes: int
    columns: dict[str, Column]
    token: str = ""


def describe(
    store: AbstractFilesystemStore, path: str, token: str, known: Mapping[str, Column]
) -> DataFolder:
    """Reads the footers of the files in a folder, and leaves what they say in the folder.

    Args:
        store: the folder is in it.
        path: of the folder.
        token: names the preparation.
        known: metadata of columns that someone has looked at.

    Raises:
        UsageError: there are no files or no rows.
    """
    found = _from_footers(store, path, token, known)
    text = json.dumps(
        {
            "version": _VERSION,
            "token": token,
            "files": _files(store, path),
            "rows": found.num_rows,
            "bytes": found.num_bytes,
            "columns": metadata.to_json(found.columns),
        }
    )
    store.write_text(store.get_data_metadata_path(path), text)
    return found


def look_into(
    store: AbstractFilesystemStore, path: str, inspected: Sequence[str] | None = None
) -> DataFolder:
    """Return what is in a folder; what was left there counts only if the files are still the same.

    Args:
        store: the folder is in it.
        path: of the folder.
        inspected: the columns in which to look for nulls and ragged arrays; None for all.

    Raises:
        UsageError: there are no files or no rows.
    """
    said = _said(store, path)
    if said is None or said["files"] != _files(store, path):
        return _from_footers(store, path, "", {}, inspected)
    columns = metadata.from_json(said["columns"])
    return DataFolder(said["rows"], said["bytes"], columns, said["token"])


def _from_footers(
    store: AbstractFilesystemStore,
    path: str,
    token: str,
    known: Mapping[str, Column],
    inspected: Sequence[str] | None = None,
) -> DataFolder:
    files = ParquetFiles(store.get_full_path(path), None, store.storage_options)
    columns = metadata.columns_of_files(files.schema, files.columns) | dict(known)
    wanted = [name for name in files.columns if inspected is None or name in inspected]
    for name, found in inspect(files, wanted).items():
        if found.nulls:
            columns[name] = {**columns[name], "nulls": found.nulls}
        if found.lengths and found.lengths[0] != found.lengths[1]:
            columns[name] = {**columns[name], "lengths": list(found.lengths)}
    return DataFolder(files.num_rows, files.num_bytes, columns, token)


def _said(store: AbstractFilesystemStore, path: str) -> Any:
    place = store.get_data_metadata_path(path)
    if not store.exists(place):
        return None
    try:
        said = json.loads(store.read(place))
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.get("version") == _VERSION else None


def _files(store: AbstractFilesystemStore, path: str) -> dict[str, int]:
    """The sizes of all files, by their names in the folder."""
    inside = store.get_localized_path(path).rstrip("/")
    found = data_files(store.fs, inside)
    return {name[len(inside) :].lstrip("/"): size for name, size in found.items()}
