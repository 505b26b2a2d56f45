"""The files of a Parquet folder, what their footers say, and their row groups."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsspec import AbstractFileSystem

# How many footers are read at a time: a file of a remote store takes a round trip or more.
_FOOTERS_AT_A_TIME = 16
# What Python and NumPy keep for a string.
_OBJECT_BYTES = 64
_BYTES_OF_TYPES = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
}


class ParquetFiles:
    """The files of a folder and their footers.

    Args:
        path: a folder, or one file; any URL of fsspec. Names that begin with a dot or an underscore
            are left out.
        columns: what is to be read; None for all.
        storage_options: of fsspec, for the URL.

    Attributes:
        paths: of the files, sorted, without the protocol.
        rows: for each file the rows in each of its row groups.
        schema: of the first file.

    Raises:
        UsageError: there are no files or no rows, or a column is missing.
        OSError: a file cannot be read.
    """

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        fs, inside = url_to_fs(path, **(storage_options or {}))
        self.paths = list(data_files(fs, inside))
        if not self.paths:
            raise UsageError(f"{path}: there are no Parquet files")
        self._fs = arrow_file_system(fs)
        with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as pool:
            self._footers = list(pool.map(self._read_footer, self.paths))
        self.rows = [
            [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
            for footer in self._footers
        ]
        self.schema: pa.Schema = self._footers[0].schema.to_arrow_schema()
        self._leaves = _leaves_of(self.schema)
        self.columns = list(self.schema.names if columns is None else columns)
        self._check()

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all files."""
        return sum(map(sum, self.rows))

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all columns of all files, before compression."""
        return sum(
            int(footer.row_group(index).total_byte_size)
            for footer in self._footers
            for index in range(footer.num_row_groups)
        )

    def digest(self) -> str:
        """Return what the footers say about the contents: sizes, minima and maxima."""
        said = hashlib.sha256()
        for footer in self._footers:
            for index in range(footer.num_row_groups):
                group = footer.row_group(index)
                chunks = [group.column(number) for number in range(group.num_columns)]
                said.update(repr([group.num_rows, *map(_said_of_chunk, chunks)]).encode())
        return f"files {said.hexdigest()[:16]}"

    def row_bytes(self) -> int:
        """About how many bytes a row takes in memory, at least 1."""
        footer = next(footer for footer in self._footers if footer.num_rows)
        group = next(
            footer.row_group(index)
            for index in range(footer.num_row_groups)
            if footer.row_group(index).num_rows
        )
        wanted = [group.column(leaf) for name in self.columns for leaf in self._leaves[name]]
        return max(1, sum(map(_bytes_in_memory, wanted)) // int(group.num_rows))

    def null_count(self, name: str) -> int | None:
        """Return how many values of a column are null, as the footers say.

        Those of arrays include arrays that are empty. None if a footer does not say it.
        """
        statistics = [chunk.statistics for _, chunk in self._chunks_of(name)]
        if any(each is None or not each.has_null_count for each in statistics):
            return None
        return sum(int(each.null_count) for each in statistics)

    def num_bytes_of(self, name: str) -> int:
        """Return how many bytes a column has in all files, before compression."""
        return sum(int(chunk.total_uncompressed_size) for _, chunk in self._chunks_of(name))

    def values_in_row(self, name: str) -> list[float]:
        """Return how many values a row has on average, for each row group."""
        return [chunk.num_values / rows for rows, chunk in self._chunks_of(name)]

    def _chunks_of(self, name: str) -> Iterator[tuple[int, pq.ColumnChunkMetaData]]:
        """The chunks of a column, with the rows of their row groups."""
        for footer in self._footers:
            groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
            for group in groups:
                if group.num_rows:
                    for leaf in self._leaves[name]:
                        yield group.num_rows, group.column(leaf)

    def open(self, file: int) -> pq.ParquetFile:
        """One of the files, for one thread; its footer is not read again."""
        source = self._fs.open_input_file(self.paths[file])
        return pq.ParquetFile(source, metadata=self._footers[file], pre_buffer=True)

    def _read_footer(self, path: str) -> pq.FileMetaData:
        try:
            with self._fs.open_input_file(path) as source:
                return pq.read_metadata(source)
        except pa.ArrowInvalid as error:
            raise OSError(f"{path} is no complete Parquet file: {error}") from error

    def _check(self) -> None:
        missing = [name for name in self.columns if name not in self.schema.names]
        if missing:
            raise UsageError(missing_columns(self.path, missing, self.schema.names, self.paths))
        if not self.columns:
            raise UsageError(f"{self.path}: no columns are to be read")
        if not self.num_rows:
            raise UsageError(f"{self.path}: there are no rows in {len(self.paths)} files")


def data_files(fs: AbstractFileSystem, path: str) -> dict[str, int]:
    """The sizes of the files in a folder and the folders in it, without those that Spark hides.

    Args:
        fs: of fsspec.
        path: as the file system knows it, without a protocol.

    Returns:
        By path, sorted; in bytes.
    """
    # Somebody else may have written the folder anew.
    fs.invalidate_cache()
    prefix = path.rstrip("/")
    return {
        name: int(found["size"])
        for name, found in sorted(fs.find(path, detail=True).items())
        if not any(part.startswith(("_", ".")) for part in name[len(prefix) :].split("/"))
    }


def missing_columns(
    path: str, missing: Sequence[str], names: Sequence[str], files: Iterable[str]
) -> str:
    """The message for columns that files lack, also if they are in the names of folders.

    Args:
        path: of the folder of all.
        missing: names of the columns.
        names: of the columns that there are.
        files: their paths.
    """
    folders = [part for file in files for part in file.split("/")[:-1] if "=" in part]
    by_name = {part.partition("=")[0]: part for part in folders}
    if found := [name for name in missing if name in by_name]:
        return (
            f"{path}: column {found[0]!r} is in the names of folders only, such as "
            f"{by_name[found[0]]} (a Hive partition), not in the files, which is what ranks read: "
            "write the data without partitionBy, or with a copy of the column under another name"
        )
    return f"{path} has no columns {list(missing)}: it has {list(names)}"


def arrow_file_system(fs: AbstractFileSystem) -> pa.fs.FileSystem:
    """The file system of Arrow for one of fsspec; its own where it has one, which needs no GIL."""
    if isinstance(fs, LocalFileSystem):
        return pa.fs.LocalFileSystem()
    if isinstance(fs, ArrowFSWrapper):
        return fs.fs
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs))


def _leaves_of(schema: pa.Schema) -> dict[str, range]:
    """By column, the numbers of its chunks in a row group; nested ones have several.

    The path of a chunk does not say it, as the name of a column may have a dot.
    """
    found, start = {}, 0
    for field in schema:
        stop = start + _num_leaves(field.type)
        found[field.name] = range(start, stop)
        start = stop
    return found


def _num_leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.ExtensionType):
        return _num_leaves(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_num_leaves(kind.field(index).type) for index in range(kind.num_fields))


def _said_of_chunk(chunk: pq.ColumnChunkMetaData) -> tuple[Any, ...]:
    found = chunk.statistics
    bounds = (found.min, found.max) if found is not None and found.has_min_max else ()
    return chunk.path_in_schema, chunk.num_values, chunk.total_compressed_size, *bounds


def _bytes_in_memory(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the bytes of a column chunk whose values are decoded."""
    if width := _BYTES_OF_TYPES.get(chunk.physical_type):
        return int(chunk.num_values) * width
    return int(chunk.total_uncompressed_size) + int(chunk.num_values) * _OBJECT_BYTES
