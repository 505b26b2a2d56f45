"""The place where an estimator keeps intermediate data, checkpoints and logs."""

from __future__ import annotations

import base64
import os
import posixpath
import re
import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from fsspec.core import strip_protocol, url_to_fs

from horovod.errors import UsageError
from horovod.spark.common.data_mark import METADATA_FILE
from horovod.spark.common.place import databricks_path, is_databricks
from horovod.spark.common.remote_store import RemoteStore
from horovod.spark.common.upload import Upload
from horovod.spark.common.writing import write_atomically, write_new
from horovod.spark.data.files import arrow_file_system, data_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "Store",
]


class Store(ABC):
    """Intermediate data and runs under one prefix; derive from it for other kinds of storage.

    A run is one training, with its checkpoint and its logs.
    """

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> AbstractFilesystemStore:
        """The store for a path or URL.

        Args:
            prefix_path: ``hdfs://…`` makes an :class:`HDFSStore`; on Databricks ``/dbfs/…``,
                ``dbfs:/…`` and ``/Volumes/…`` make a :class:`DBFSLocalStore`; all else a
                :class:`FilesystemStore`, where a path without a protocol is one of this host.
            args, kwargs: of the store.

        Raises:
            UsageError: the prefix makes no sense.
        """
        if prefix_path.startswith("hdfs://"):
            return HDFSStore(prefix_path, *args, **kwargs)
        if is_databricks() and databricks_path(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)

    @abstractmethod
    def get_train_data_path(self, idx: int | None = None) -> str:
        """The folder of the training data; with a number that of one of several data sets."""

    @abstractmethod
    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the path of the validation data, in the same way."""

    @abstractmethod
    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the path of the test data, in the same way."""

    @abstractmethod
    def saving_runs(self) -> bool:
        """Whether checkpoints and logs are kept."""

    @abstractmethod
    def get_runs_path(self) -> str:
        """The folder of all runs."""

    @abstractmethod
    def get_run_path(self, run_id: str) -> str:
        """The folder of one run."""

    @abstractmethod
    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The folder of a run's checkpoint; None if runs are not kept."""

    @abstractmethod
    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; None if runs are not kept."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """A whole file."""

    @abstractmethod
    def write_atomically(self, path: str, data: bytes) -> None:
        """Replaces a file, and makes its folder; nobody sees half of it."""

    @abstractmethod
    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies the contents of a local folder into that of a run."""

    def write_new(self, path: str, data: bytes) -> bool:
        """Write a file that does not exist, and make its folder.

        Returns:
            Whether it did not exist; of several writers at once, more than one may be told so
            where the storage knows no better.
        """
        if self.exists(path):
            return False
        self.write_atomically(path, data)
        return True

    def get_checkpoint_filename(self) -> str:
        """The name of the checkpoint in the folder of its run."""
        return "checkpoint"

    def get_logs_subdir(self) -> str:
        """The name of the folder of logs in that of their run."""
        return "logs"

    def write_text(self, path: str, text: str) -> None:
        """Replaces a file by text, in UTF-8; nobody sees half of it."""
        self.write_atomically(path, text.encode())

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """A function whose result is a context with a temporary folder of this host."""
        return _temporary_folder

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> RemoteStore:
        """Return the facts that the ranks need; they can be pickled.

        Args:
            run_id: of their run.
            dataset_idx: which of several data sets they read.
        """
        return RemoteStore(
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self.get_checkpoint_filename(),
            logs_subdir=self.get_logs_subdir(),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )


class AbstractFilesystemStore(Store):
    """A store in folders of a file system that fsspec reaches.

    Args:
        prefix_path: everything is below it.
        train_path, val_path, test_path, runs_path: folders that are elsewhere.
        save_runs: keep checkpoints and logs.
        storage_options: of fsspec, for the URL.
        checkpoint_filename: the name of checkpoints.

    Attributes:
        prefix_path: in full, as all paths of the store, with protocol.
        storage_options: as given.
    """

    _checkpoint_filename = "checkpoint"

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self.storage_options = dict(storage_options or {})
        self.prefix_path = self.get_full_path(prefix_path)
        self._train_path = self._folder("intermediate_train_data", train_path)
        self._val_path = self._folder("intermediate_val_data", val_path)
        self._test_path = self._folder("intermediate_test_data", test_path)
        self._runs_path = self._folder("runs", runs_path)
        self._save_runs = save_runs
        if checkpoint_filename is not None:
            self._checkpoint_filename = checkpoint_filename

    @property
    def fs(self) -> Any:
        """The file system, of fsspec."""
        return url_to_fs(self.prefix_path, **self.storage_options)[0]

    def get_full_path(self, path: str) -> str:
        """A path with protocol and host."""
        raise NotImplementedError

    def get_localized_path(self, path: str) -> str:
        """A path as the file system knows it, without protocol and host."""
        raise NotImplementedError

    def get_full_path_fn(self) -> Callable[[str], str]:
        """:meth:`get_full_path` as a function that can be pickled."""
        return self.get_full_path

    def get_spark_path(self, path: str) -> str:
        """A path as Spark knows it."""
        return self.get_full_path(path)

    def get_train_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._test_path, idx)

    def get_data_metadata_path(self, path: str) -> str:
        """The file in a data folder that says what the folder holds, without protocol and host.

        Args:
            path: of the folder.
        """
        return posixpath.join(self.get_localized_path(path).rstrip("/"), METADATA_FILE)

    def saving_runs(self) -> bool:
        return self._save_runs

    def get_runs_path(self) -> str:
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        return posixpath.join(self._runs_path, run_id)

    def get_checkpoint_path(self, run_id: str) -> str | None:
        return self.get_run_path(run_id) if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The names of a run's checkpoints with some ending, sorted; none if there are no runs."""
        fs, folder = self._at(self.get_run_path(run_id))
        if not self._save_runs or not fs.isdir(folder):
            return []
        names = [str(each).rstrip("/").rpartition("/")[2] for each in fs.ls(folder, detail=False)]
        return sorted(name for name in names if name.endswith(suffix))

    def get_logs_path(self, run_id: str) -> str | None:
        if not self._save_runs:
            return None
        return posixpath.join(self.get_run_path(run_id), self.get_logs_subdir())

    def exists(self, path: str) -> bool:
        fs, inside = self._at(path)
        return bool(fs.exists(inside))

    def read(self, path: str) -> bytes:
        fs, inside = self._at(path)
        return bytes(fs.cat_file(inside))

    def write_atomically(self, path: str, data: bytes) -> None:
        fs, inside = self._at(path)
        write_atomically(fs, inside, data)

    def write_new(self, path: str, data: bytes) -> bool:
        fs, inside = self._at(path)
        return write_new(fs, inside, data)

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether a folder holds files of Parquet, the first of which can be read; never raises."""
        try:
            fs, inside = self._at(path)
            first = next(iter(data_files(fs, inside)))
            pq.read_metadata(first, filesystem=arrow_file_system(fs))
        except Exception:
            return False
        return True

    def get_parquet_dataset(self, path: str) -> pq.ParquetDataset:
        """The files of a folder, for pyarrow."""
        fs, inside = self._at(path)
        return pq.ParquetDataset(inside, filesystem=arrow_file_system(fs))

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies the contents of a local folder into that of a run.

        It overwrites what is there, file by file, so that nobody sees half of one, and leaves out
        what has not changed since it was called last.
        """
        url = self.get_full_path(self.get_run_path(run_id))
        return Upload(url, self.get_localized_path(url), self.storage_options)

    def read_serialized_keras_model(
        self,
        ckpt_path: str,
        model: object = None,
        custom_objects: Mapping[str, object] | None = None,
    ) -> str:
        """The file of a saved model, in base64.

        Args:
            ckpt_path: of the file, or of the folder of its run.
            model, custom_objects: nothing is loaded, so they are not needed.

        Raises:
            FileNotFoundError: there is no such file.
        """
        fs, inside = self._at(ckpt_path)
        if fs.isdir(inside):
            ckpt_path = posixpath.join(ckpt_path, self.get_checkpoint_filename())
        return base64.b64encode(self.read(ckpt_path)).decode()

    def _at(self, path: str) -> tuple[Any, str]:
        """The file system of a path, which sees what others have written, and the path in it.

        A path without a protocol is one of the file system of the store.
        """
        is_local = self.prefix_path.startswith("file:")
        url = self.get_full_path(path) if is_local or ":/" in path else self.prefix_path
        fs, inside = url_to_fs(url, **self.storage_options)
        fs.invalidate_cache()
        if url is self.prefix_path:
            return fs, path
        return fs, inside

    def _folder(self, name: str, elsewhere: str | None) -> str:
        if elsewhere is not None:
            return self.get_full_path(elsewhere)
        return posixpath.join(self.prefix_path, name)


class FilesystemStore(AbstractFilesystemStore):
    """A store anywhere fsspec reaches: a folder of this host, or a URL such as ``s3://bucket/x``.

    On a cluster all hosts must see the folder.

    Example:
        >>> store = FilesystemStore("s3://bucket/experiments", storage_options={"key": "…"})
    """

    def get_full_path(self, path: str) -> str:
        if path.startswith("file:"):
            return "file://" + re.sub("^file:(//)?", "", path)
        return path if "://" in path else f"file://{os.path.abspath(path)}"

    def get_localized_path(self, path: str) -> str:
        return str(strip_protocol(self.get_full_path(path)))

    def get_spark_path(self, path: str) -> str:
        full = self.get_full_path(path)
        local = full.removeprefix("file://")
        # Spark has volumes of Unity Catalog in a file system of their own.
        return local if local.startswith("/Volumes/") and is_databricks() else full


class LocalStore(FilesystemStore):
    """The name that :class:`FilesystemStore` had for folders of this host."""


class DBFSLocalStore(FilesystemStore):
    """A store on Databricks: in DBFS, or in a volume of Unity Catalog.

    Args:
        prefix_path: ``/dbfs/…``, ``dbfs:/…``, ``/Volumes/…``, or one with ``file:`` in front.
        args, kwargs: as of :class:`AbstractFilesystemStore`.

    Raises:
        UsageError: it is another path.
    """

    _checkpoint_filename = "checkpoint.tf"

    def get_full_path(self, path: str) -> str:
        return f"file://{self.normalize_path(path)}"

    @staticmethod
    def normalize_path(path: str) -> str:
        """The path by which Python reaches it, ``/dbfs/…`` or ``/Volumes/…``.

        Raises:
            UsageError: it is another path.
        """
        local = databricks_path(path)
        if local is None:
            raise UsageError(
                f"{path} is no path of Databricks: give /dbfs/…, dbfs:/… or /Volumes/…, or make a "
                "FilesystemStore"
            )
        return local


class HDFSStore(AbstractFilesystemStore):
    """A store in HDFS; needs libhdfs, which comes with Hadoop.

    Args:
        prefix_path: ``hdfs://host:port/…``, ``hdfs:///…``, or a path.
        host, port: of the name node; None for those of the prefix, else those that Hadoop is
            configured for.
        user: to connect as.
        kerb_ticket: a file with a ticket of Kerberos.
        driver: always libhdfs.
        extra_conf: options for Hadoop.
        args, kwargs: as of :class:`AbstractFilesystemStore`.

    Raises:
        UsageError: the prefix has another protocol or no path, or there is no such driver.
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if driver != "libhdfs":
            raise UsageError(f"driver={driver!r}: only libhdfs is left")
        url = urlsplit(prefix_path)
        if url.scheme not in ("", "hdfs") or not url.path.startswith("/"):
            raise UsageError(
                f"{prefix_path} is no path in HDFS: give hdfs://host:port/path, or /path"
            )
        for given, found in ((host, url.hostname), (port, url.port)):
            if given and found and given != found:
                raise UsageError(f"{prefix_path} names another name node than {given}")
        self._url_prefix = f"hdfs://{url.netloc}"
        options = {
            "host": host or url.hostname or "default",
            "port": port or url.port or 0,
            "user": user,
            "kerb_ticket": kerb_ticket,
            "extra_conf": dict(extra_conf) if extra_conf else None,
        }
        kwargs["storage_options"] = options | (kwargs.get("storage_options") or {})
        super().__init__(prefix_path, *args, **kwargs)

    def get_full_path(self, path: str) -> str:
        return path if path.startswith("hdfs://") else f"{self._url_prefix}{path}"

    def get_localized_path(self, path: str) -> str:
        return urlsplit(path).path if path.startswith("hdfs://") else path


def _numbered(path: str, idx: int | None) -> str:
    return path if idx is None else f"{path}.{idx}"


@contextmanager
def _temporary_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="horovod-run-") as folder:
        yield folder
