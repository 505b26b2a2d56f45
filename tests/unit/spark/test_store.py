"""Stores: paths, what is written, and what is copied."""

from __future__ import annotations

import base64
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from horovod.errors import UsageError
from horovod.spark.common import writing
from horovod.spark.common.store import (
    DBFSLocalStore,
    FilesystemStore,
    HDFSStore,
    LocalStore,
    Store,
)


@pytest.fixture
def on_databricks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")


@pytest.fixture(params=["path", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FilesystemStore:
    prefix = {
        "path": str(tmp_path / "store"),
        "file": f"file://{tmp_path}/store",
        "memory": f"memory://{uuid.uuid4().hex}/store",
    }[request.param]
    created = Store.create(prefix)
    assert type(created) is FilesystemStore
    return created


def test_the_layout_below_the_prefix() -> None:
    store = FilesystemStore("/a/b")
    assert store.prefix_path == "file:///a/b"
    assert store.get_train_data_path() == "file:///a/b/intermediate_train_data"
    assert store.get_train_data_path(0) == "file:///a/b/intermediate_train_data.0"
    assert store.get_val_data_path(3) == "file:///a/b/intermediate_val_data.3"
    assert store.get_test_data_path() == "file:///a/b/intermediate_test_data"
    assert store.get_runs_path() == "file:///a/b/runs"
    assert store.get_run_path("r") == "file:///a/b/runs/r"
    assert store.get_checkpoint_path("r") == "file:///a/b/runs/r"
    assert store.get_checkpoint_filename() == "checkpoint"
    assert store.get_logs_path("r") == "file:///a/b/runs/r/logs"
    assert store.get_logs_subdir() == "logs"
    assert store.get_localized_path(store.get_run_path("r")) == "/a/b/runs/r"
    assert store.get_full_path_fn()("/c") == "file:///c"
    assert store.get_data_metadata_path("/a/data.0") == "/a/data.0/_horovod_metadata.json"


def test_a_store_without_runs() -> None:
    store = FilesystemStore("/a", save_runs=False)
    assert not store.saving_runs()
    assert store.get_checkpoint_path("r") is None
    assert store.get_logs_path("r") is None
    assert store.get_checkpoints("r") == []


def test_each_folder_may_be_elsewhere() -> None:
    store = FilesystemStore("/a", "/t", "s3://b/v", "/test", "/r", checkpoint_filename="best")
    assert store.get_train_data_path(1) == "file:///t.1"
    assert store.get_val_data_path() == "s3://b/v"
    assert store.get_test_data_path() == "file:///test"
    assert store.get_run_path("x") == "file:///r/x"
    assert store.get_checkpoint_filename() == "best"


@pytest.mark.parametrize(
    ("prefix", "full", "localized"),
    [
        ("memory://a/b", "memory://a/b", "/a/b"),
        ("file:/a/b", "file:///a/b", "/a/b"),
        ("file:///a/b", "file:///a/b", "/a/b"),
        ("/dbfs/a", "file:///dbfs/a", "/dbfs/a"),
    ],
)
def test_paths_with_and_without_protocol(prefix: str, full: str, localized: str) -> None:
    store = Store.create(prefix)
    assert type(store) is FilesystemStore
    assert store.prefix_path == full
    assert store.get_localized_path(full) == localized


def test_a_relative_path_is_made_absolute() -> None:
    assert FilesystemStore("a").prefix_path == f"file://{os.getcwd()}/a"


@pytest.mark.usefixtures("on_databricks")
@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("/dbfs/a", "/dbfs/a"),
        ("dbfs:/a", "/dbfs/a"),
        ("file:/dbfs/a", "/dbfs/a"),
        ("file:///dbfs/a", "/dbfs/a"),
        ("/Volumes/c/s/v", "/Volumes/c/s/v"),
        ("dbfs:/Volumes/c/s/v", "/Volumes/c/s/v"),
        ("file:///Volumes/c/s/v", "/Volumes/c/s/v"),
    ],
)
def test_paths_of_databricks(prefix: str, path: str) -> None:
    store = Store.create(prefix)
    assert type(store) is DBFSLocalStore
    assert store.get_run_path("r") == f"file://{path}/runs/r"
    assert store.get_localized_path(store.prefix_path) == path
    assert store.get_checkpoint_filename() == "checkpoint.tf"
    in_volumes = path.startswith("/Volumes")
    assert store.get_spark_path(prefix) == (path if in_volumes else f"file://{path}")


@pytest.mark.parametrize("path", ["dbfs://a", "/a", "/dbfsx/a", "s3://dbfs/a", "hdfs:///dbfs/a"])
def test_other_paths_are_not_of_databricks(path: str) -> None:
    with pytest.raises(UsageError, match="is no path of Databricks"):
        DBFSLocalStore(path)


@pytest.mark.usefixtures("on_databricks")
def test_a_store_elsewhere_on_databricks() -> None:
    assert type(Store.create("/tmp/a")) is FilesystemStore
    assert type(Store.create("hdfs:///a")) is HDFSStore


@pytest.mark.parametrize(
    ("prefix", "full", "host", "port"),
    [
        ("hdfs://nn:8020/a", "hdfs://nn:8020/p", "nn", 8020),
        ("hdfs://nn/a", "hdfs://nn/p", "nn", 0),
        ("hdfs:///a", "hdfs:///p", "default", 0),
        ("/a", "hdfs:///p", "default", 0),
    ],
)
def test_paths_of_hdfs(prefix: str, full: str, host: str, port: int) -> None:
    store = HDFSStore(prefix)
    assert store.get_full_path("/p") == full
    assert store.get_localized_path(full) == "/p"
    assert store.get_localized_path("/p") == "/p"
    assert store.storage_options["host"] == host
    assert store.storage_options["port"] == port
    assert store.get_train_data_path(0) == full[:-1] + "a/intermediate_train_data.0"
    assert type(Store.create("hdfs://nn:8020/a")) is HDFSStore


@pytest.mark.parametrize(
    ("prefix", "options", "message"),
    [
        ("file:///a", {}, "is no path in HDFS"),
        ("hdfs://nn:8020", {}, "is no path in HDFS"),
        ("a", {}, "is no path in HDFS"),
        ("/a", {"driver": "libhdfs3"}, "only libhdfs"),
        ("hdfs://nn/a", {"host": "other"}, "names another name node than other"),
    ],
)
def test_what_hdfs_does_not_take(prefix: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        HDFSStore(prefix, **options)


def test_folders_of_hdfs_may_be_elsewhere() -> None:
    store = HDFSStore("hdfs://nn:8020/a", train_path="/t", runs_path="hdfs://nn:8020/r")
    assert store.get_train_data_path() == "hdfs://nn:8020/t"
    assert store.get_run_path("x") == "hdfs://nn:8020/r/x"


def test_files_are_written_and_read(store: FilesystemStore) -> None:
    path = f"{store.get_run_path('r')}/checkpoint"
    assert not store.exists(path)
    store.write_atomically(path, b"\0one")
    assert store.exists(path)
    assert store.read(path) == b"\0one"
    store.write_text(path, "zwö")
    assert store.read(path).decode() == "zwö"
    assert store.read(store.get_localized_path(path)) == "zwö".encode()
    assert store.exists(store.get_run_path("r"))
    assert len(store.fs.ls(store.get_localized_path(store.get_run_path("r")))) == 1


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    path = str(tmp_path / "checkpoint")
    store.write_atomically(path, b"old")

    def fail(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(writing, "_rename", fail)
    with pytest.raises(OSError, match="no space left"):
        store.write_atomically(path, b"new")
    assert store.read(path) == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_checkpoints_are_listed(store: FilesystemStore) -> None:
    assert store.get_checkpoints("r") == []
    for name in ("b.ckpt", "a.ckpt", "other"):
        store.write_text(f"{store.get_run_path('r')}/{name}", name)
    assert store.get_checkpoints("r") == ["a.ckpt", "b.ckpt"]
    assert store.get_checkpoints("r", suffix="other") == ["other"]


def test_a_folder_is_copied_again_and_again(store: FilesystemStore, tmp_path: Path) -> None:
    local = tmp_path / "local"
    (local / "logs" / "deep").mkdir(parents=True)
    (local / "checkpoint").write_bytes(b"1")
    (local / "logs" / "deep" / "events").write_bytes(b"e")
    sync = cloudpickle.loads(cloudpickle.dumps(store.sync_fn("r")))
    run = store.get_run_path("r")
    sync(str(local))
    assert store.read(f"{run}/checkpoint") == b"1"
    assert store.read(f"{store.get_logs_path('r')}/deep/events") == b"e"

    # Whatever is in the store stays there unless a local file has changed.
    store.write_atomically(f"{run}/checkpoint", b"other")
    (local / "logs" / "deep" / "events").write_bytes(b"longer")
    sync(str(local))
    assert store.read(f"{run}/checkpoint") == b"other"
    assert store.read(f"{store.get_logs_path('r')}/deep/events") == b"longer"

    later = (local / "checkpoint").stat().st_mtime_ns + 1_000_000_000
    os.utime(local / "checkpoint", ns=(later, later))
    sync(str(local))
    assert store.read(f"{run}/checkpoint") == b"1"


def test_data_sets_are_recognized(store: FilesystemStore, tmp_path: Path) -> None:
    folder = store.get_train_data_path()
    assert not store.is_parquet_dataset(folder)
    store.write_text(f"{folder}/part-0.parquet", "no parquet")
    assert not store.is_parquet_dataset(folder)
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x")
    store.write_atomically(f"{folder}/part-0.parquet", (tmp_path / "x").read_bytes())
    assert store.is_parquet_dataset(folder)
    assert store.get_parquet_dataset(folder).read().num_rows == 2


def test_what_ranks_need_can_be_pickled(store: FilesystemStore) -> None:
    remote = pickle.loads(pickle.dumps(store.to_remote("r", 2)))
    assert remote.train_data_path == store.get_train_data_path(2)
    assert remote.val_data_path == store.get_val_data_path(2)
    assert remote.test_data_path == store.get_test_data_path(2)
    assert remote.saving_runs
    assert remote.runs_path == store.get_runs_path()
    assert remote.run_path == remote.checkpoint_path == store.get_run_path("r")
    assert remote.logs_path == store.get_logs_path("r")
    assert (remote.checkpoint_filename, remote.logs_subdir) == ("checkpoint", "logs")
    with remote.get_local_output_dir() as folder:
        (Path(folder) / "checkpoint").write_bytes(b"1")
        remote.sync(folder)
    assert not Path(folder).exists()
    assert store.read(f"{remote.run_path}/checkpoint") == b"1"


def test_stores_can_be_pickled(store: FilesystemStore) -> None:
    store.write_text(f"{store.get_runs_path()}/x", "x")
    assert pickle.loads(pickle.dumps(store)).read(f"{store.get_runs_path()}/x") == b"x"
    assert pickle.loads(pickle.dumps(HDFSStore("hdfs://nn:1/a"))).prefix_path == "hdfs://nn:1/a"


def test_models_of_keras_are_read_in_base64(store: FilesystemStore) -> None:
    folder = store.get_run_path("r")
    store.write_atomically(f"{folder}/checkpoint", b"model")
    for path in (folder, f"{folder}/checkpoint"):
        found = store.read_serialized_keras_model(path, None, {})
        assert base64.b64decode(found) == b"model"
    with pytest.raises(FileNotFoundError):
        store.read_serialized_keras_model(f"{folder}/nothing", None, {})
