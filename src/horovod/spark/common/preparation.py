"""Writes a DataFrame as the Parquet files that the ranks read."""

from __future__ import annotations

import atexit
import os
import sys
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from horovod._settings.config import inherited_environment
from horovod.errors import UsageError
from horovod.spark.common.cache import DataCache, Prepared
from horovod.spark.common.claims import Claims
from horovod.spark.common.data_folder import describe, look_into
from horovod.spark.common.frames import (
    check_not_empty,
    check_validation,
    chosen,
    content_of,
    lengths_of,
    split,
    without_vectors,
)
from horovod.spark.common.metadata import columns_of_frame, with_nulls_of
from horovod.spark.common.place import is_databricks
from horovod.spark.common.store import LocalStore
from horovod.spark.data.files import data_files, missing_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from horovod.spark.common.metadata import Column
    from horovod.spark.common.store import AbstractFilesystemStore

    Properties = tuple[int, int, dict[str, Column], float]

_WAIT_S = "DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS"
_INTERVAL_S = "DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS"

_cache = DataCache()
_claims = Claims()
atexit.register(_claims.close)


def _begin_child() -> None:
    """A process that was forked has no data sets: they are those of its parent."""
    global _cache, _claims
    _claims.forget()
    _cache, _claims = DataCache(), Claims()


os.register_at_fork(after_in_child=_begin_child)


@contextmanager
def prepare_data(
    num_processes: int,
    store: AbstractFilesystemStore,
    df: DataFrame,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None,
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
    check_lengths: Callable[[Mapping[str, tuple[int, int]]], None] | None = None,
) -> Iterator[int]:
    """Writes a frame into a store, for ranks to read; the data stay after the block.

    The same frame with the same arguments is written once, as long as this process lives and nobody
    else writes into the folders, which no other program takes for its data meanwhile: the number of
    the data set is the lowest one whose folders nobody has. Rows are dealt out over all files, so
    that each rank gets rows of every part of the frame.

    Args:
        num_processes: how many ranks there will be.
        store: where to write.
        df: the frame; its vectors become arrays.
        label_columns, feature_columns: what to write; None as features for all columns that are
            neither labels nor weights nor decide on validation.
        validation: the share of rows for validation, drawn at random, or a column, of which true
            and numbers above 0 count.
        sample_weight_col: a column of weights.
        compress_sparse: write columns of sparse vectors without their zeros.
        partitions_per_process: how many files to write for each rank.
        verbose: say what is written if it is above 0.
        check_lengths: called before anything is written, with the least and the most numbers that
            rows of each column of arrays or vectors have; Spark then computes these columns twice.

    Yields:
        The number of the data set, for ``store.get_train_data_path`` and
        :func:`get_dataset_properties`.

    Raises:
        UsageError: an argument makes no sense, a column is missing, or there are no rows for
            training or for validation.
        RuntimeError: on Databricks files do not appear.
    """
    check_validation(validation, df)
    for name, value in (
        ("num_processes", num_processes),
        ("partitions_per_process", partitions_per_process),
    ):
        if value <= 0:
            raise UsageError(f"{name} is {value}, but must be above 0")
    columns = _columns(df, label_columns, feature_columns, validation, sample_weight_col)
    writing = _Writing(
        store, df, columns, validation, compress_sparse, num_processes, partitions_per_process
    )
    writing.say = _say if verbose > 0 else _say_nothing
    writing.check_lengths = check_lengths
    with _cache.using(df, writing.key(), writing.write, writing.is_there, writing.take) as index:
        yield index


def get_dataset_properties(dataset_idx: int) -> Properties:
    """Return the properties of a data set that :func:`prepare_data` wrote in this process.

    Args:
        dataset_idx: its number.

    Returns:
        Rows for training, rows for validation, metadata by column, bytes of a row on average.

    Raises:
        UsageError: there is no such data set.
    """
    return _cache.properties(dataset_idx)


def clear_training_cache() -> None:
    """Forgets which data sets this process has written, so that they are written again."""
    _cache.clear()


def get_simple_meta_from_parquet(
    store: AbstractFilesystemStore,
    label_columns: Sequence[str] | None,
    feature_columns: Sequence[str] | None,
    sample_weight_col: str | None = None,
    dataset_idx: int | None = None,
) -> Properties:
    """Return the properties of data that are in the folders of a store.

    Args:
        store: has the data.
        label_columns, feature_columns: None for all columns.
        sample_weight_col: a column of weights.
        dataset_idx: which data set; None for the folders without a number.

    Returns:
        As :func:`get_dataset_properties`; no rows for validation if there is no such folder.

    Raises:
        UsageError: there are no rows for training, or a column is missing.
    """
    named = [*(label_columns or []), *(feature_columns or [])]
    is_all = not named or label_columns is None or feature_columns is None
    inspected = None if is_all else [*named, sample_weight_col or ""]
    training = look_into(store, store.get_train_data_path(dataset_idx), inspected)
    wanted = list(training.columns) if is_all else named
    if sample_weight_col is not None and sample_weight_col not in wanted:
        wanted.append(sample_weight_col)
    if missing := [name for name in wanted if name not in training.columns]:
        path = store.get_train_data_path(dataset_idx)
        files = data_files(store.fs, store.get_localized_path(path))
        raise UsageError(missing_columns(path, missing, list(training.columns), files))
    val_path = store.get_val_data_path(dataset_idx)
    val_rows, metadata = 0, {name: training.columns[name] for name in wanted}
    if store.is_parquet_dataset(val_path):
        found = look_into(store, val_path, inspected)
        val_rows, metadata = found.num_rows, with_nulls_of(metadata, found.columns)
    return training.num_rows, val_rows, metadata, training.num_bytes / training.num_rows


class _Writing:
    """The options with which a frame is written, on which its data depend."""

    say: Callable[[str], None]
    check_lengths: Callable[[Mapping[str, tuple[int, int]]], None] | None

    def __init__(
        self,
        store: AbstractFilesystemStore,
        df: DataFrame,
        columns: list[str],
        validation: float | str | None,
        compress_sparse: bool,
        num_processes: int,
        partitions_per_process: int,
    ) -> None:
        self._store = store
        self._df = df
        self._columns = columns
        self._validation = validation
        self._compress_sparse = compress_sparse
        self._num_processes = num_processes
        self._num_files = num_processes * partitions_per_process

    def key(self) -> tuple[Any, ...]:
        paths = self._store.get_train_data_path(), self._store.get_val_data_path()
        how = self._validation, self._compress_sparse, self._num_processes, self._num_files
        return (*paths, tuple(self._columns), *how)

    def take(self, index: int) -> bool:
        """Whether the folders of a number are those of this process, from now on.

        Raises:
            UsageError: the store has one folder for all numbers, and it is in use.
        """
        paths = self._paths(index)
        if _claims.take(paths, index, self._store.storage_options):
            return True
        if set(paths) & set(self._paths(index + 1)):
            raise UsageError(
                f"{paths[0]}: another data set is in this folder, and the store has the same "
                "folder for all data sets: give each program a store of its own"
            )
        return False

    def is_there(self, index: int, token: str) -> bool:
        paths = self._paths(index)[: 2 if self._validation else 1]
        try:
            found = {look_into(self._store, path, ()).token for path in paths}
        except (OSError, UsageError):
            return False
        return found == {token}

    def _paths(self, index: int) -> list[str]:
        return [self._store.get_train_data_path(index), self._store.get_val_data_path(index)]

    def write(self, index: int) -> Prepared:
        """Writes both folders of a data set."""
        token = uuid.uuid4().hex
        train_path = self._store.get_train_data_path(index)
        val_path = self._store.get_val_data_path(index)
        by_column = [self._validation] if isinstance(self._validation, str) else []
        df = chosen(self._df, list(dict.fromkeys([*self._columns, *by_column])))
        check_not_empty(df)
        if self.check_lengths is not None:
            self.check_lengths(lengths_of(df))
        known = columns_of_frame(df.schema)
        df, looked_at = without_vectors(df, self._compress_sparse, as_is=by_column)
        known = {name: (known | looked_at)[name] for name in self._columns}
        parts = split(df, self._validation, keep=self._validation in self._columns)
        training = self._write(parts.training, 1 - parts.share, train_path, token, known)
        val_rows, columns = 0, training.columns
        if parts.validation is None:
            self._remove(val_path)
        else:
            found = self._write(parts.validation, parts.share, val_path, token, known)
            val_rows, columns = found.num_rows, with_nulls_of(columns, found.columns)
        row_bytes = training.num_bytes / training.num_rows
        return Prepared(token, (training.num_rows, val_rows, columns, row_bytes))

    def _write(
        self, df: DataFrame, share: float, path: str, token: str, known: dict[str, Column]
    ) -> Any:
        num_files = max(int(self._num_files * share), self._num_processes)
        self.say(f"writing {num_files} files into {path}")
        spark_path = self._store.get_spark_path(path)
        df.repartition(num_files).write.mode("overwrite").parquet(spark_path)
        if is_databricks() and not isinstance(self._store, LocalStore):
            written = df.sparkSession.read.parquet(spark_path).inputFiles()
            wait_for_files(self._store, list(written))
        content = content_of(df.sparkSession.read.parquet(spark_path))
        found = describe(self._store, path, token, known, content)
        self.say(f"wrote {found.num_rows} rows, {found.num_bytes} bytes, into {path}")
        return found

    def _remove(self, path: str) -> None:
        if self._store.exists(path):
            self._store.fs.rm(self._store.get_localized_path(path), recursive=True)


def wait_for_files(store: AbstractFilesystemStore, paths: Sequence[str]) -> None:
    """Waits until files that Spark has written can be seen here.

    Args:
        store: asks for them.
        paths: of the files.

    Raises:
        RuntimeError: they did not appear within the time that
            ``DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS`` gives, 30 s by default.
    """
    environment = inherited_environment()
    timeout_s = float(environment.get(_WAIT_S, 30))
    interval_s = float(environment.get(_INTERVAL_S, 0.1))
    deadline = time.monotonic() + timeout_s
    missing = list(paths)
    while missing := [path for path in missing if not store.exists(path)]:
        if time.monotonic() > deadline:
            raise RuntimeError(
                "Timeout while waiting for all parquet-store files to appear: after "
                f"{timeout_s:g} s {len(missing)} of {len(paths)} are missing, {missing[0]} among "
                f"them; {_WAIT_S} sets another time"
            )
        # File systems that are mounted do not tell when a file appears.
        time.sleep(interval_s)


def _columns(
    df: DataFrame,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None,
    validation: float | str | None,
    sample_weight_col: str | None,
) -> list[str]:
    """The columns to write, each once."""
    if not label_columns:
        raise UsageError("label_columns is empty: give the columns that the model is to predict")
    others = {*label_columns, sample_weight_col, validation}
    if feature_columns is None:
        feature_columns = [name for name in df.columns if name not in others]
    weights = [] if sample_weight_col is None else [sample_weight_col]
    wanted = list(dict.fromkeys([*feature_columns, *label_columns, *weights]))
    if missing := [name for name in wanted if name not in df.columns]:
        raise UsageError(f"there are no columns {missing}: the frame has {df.columns}")
    return wanted


def _say(text: str) -> None:
    print(f"horovod.spark: {text}", file=sys.stderr, flush=True)


def _say_nothing(text: str) -> None:
    pass
