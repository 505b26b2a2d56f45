"""The contents of a data folder: rows, bytes and columns, kept in a file of the folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from horovod.spark.common import metadata
from horovod.spark.common.data_mark import VERSION, files_in, mark_of, said_of
from horovod.spark.data.files import ParquetFiles
from horovod.spark.data.inspection import inspect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.spark.common.metadata import Column
    from horovod.spark.common.store import AbstractFilesystemStore


@dataclass(frozen=True)
class DataFolder:
    """The contents of a folder.

    Attributes:
        num_rows, num_bytes: of all files; bytes before compression.
        columns: metadata by name.
        token: which preparation wrote it; empty if none did.
        content: the same for the same rows, whatever their order; of folders that no preparation
            wrote, the same for the same files.
        mark: tells what is in the folder now from all that was or will be there.
    """

    num_rows: int
    num_bytes: int
    columns: dict[str, Column]
    token: str
    content: str
    mark: str


def describe(
    store: AbstractFilesystemStore,
    path: str,
    token: str,
    known: Mapping[str, Column],
    content: str = "",
) -> DataFolder:
    """Reads the footers of the files in a folder, and leaves what they say in the folder.

    Args:
        store: the folder is in it.
        path: of the folder.
        token: names the preparation.
        known: metadata of columns that someone has looked at.
        content: see :class:`DataFolder`.

    Raises:
        UsageError: there are no files or no rows.
    """
    found = _from_footers(store, path, token, known, content)
    text = json.dumps(
        {
            "version": VERSION,
            "token": token,
            "content": content,
            "files": files_in(*_place(store, path)),
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
    fs, inside = _place(store, path)
    said = said_of(fs, inside)
    if said is None:
        return _from_footers(store, path, "", {}, inspected=inspected)
    columns = metadata.from_json(said["columns"])
    token = said["token"]
    return DataFolder(said["rows"], said["bytes"], columns, token, said["content"], token)


def _from_footers(
    store: AbstractFilesystemStore,
    path: str,
    token: str,
    known: Mapping[str, Column],
    content: str = "",
    inspected: Sequence[str] | None = None,
) -> DataFolder:
    listed = files_in(*_place(store, path))
    files = ParquetFiles(store.get_full_path(path), None, store.storage_options)
    columns = metadata.columns_of_files(files.schema, files.columns) | dict(known)
    wanted = [name for name in files.columns if inspected is None or name in inspected]
    for name, found in inspect(files, wanted).items():
        if found.nulls:
            columns[name] = {**columns[name], "nulls": found.nulls}
        if found.lengths and found.lengths[0] != found.lengths[1]:
            columns[name] = {**columns[name], "lengths": list(found.lengths)}
    return DataFolder(
        files.num_rows,
        files.num_bytes,
        columns,
        token,
        content or files.digest(),
        token or mark_of(listed),
    )


def _place(store: AbstractFilesystemStore, path: str) -> tuple[Any, str]:
    fs, inside = url_to_fs(store.get_full_path(path), **store.storage_options)
    return fs, str(inside)
