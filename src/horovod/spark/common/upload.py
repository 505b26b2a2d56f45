"""Copying a local folder to a store, again and again, without what is there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from horovod.spark.common.writing import upload_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping


class Upload:
    """Copies the contents of a local folder; it can be pickled.

    A file is left out if its time and size are those that it had when it was copied last.

    Args:
        url: the folder to copy to.
        path: the same as its file system knows it.
        storage_options: of fsspec, for the URL.
    """

    def __init__(self, url: str, path: str, storage_options: Mapping[str, Any]) -> None:
        self._url = url
        self._path = path.rstrip("/")
        self._storage_options = dict(storage_options)
        self._copied: dict[str, tuple[int, int]] = {}

    def __call__(self, local_dir: str) -> None:
        """Copies what is new in a folder.

        Args:
            local_dir: the folder; its contents are copied, not the folder itself.
        """
        fs = url_to_fs(self._url, **self._storage_options)[0]
        for file in sorted(each for each in Path(local_dir).rglob("*") if each.is_file()):
            status = file.stat()
            state = status.st_mtime_ns, status.st_size
            if self._copied.get(str(file)) == state:
                continue
            name = file.relative_to(local_dir).as_posix()
            upload_atomically(fs, str(file), f"{self._path}/{name}")
            self._copied[str(file)] = state
