"""An estimator with its data and runs in a bucket: a server on loopback speaks S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.spark.spark_models import NUM_LINES, for_lines

from horovod.spark.common.store import FilesystemStore, Store

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_FILES = 4


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """How fsspec reaches the server."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield {
            "key": "testing",
            "secret": "testing",
            "endpoint_url": f"http://{host}:{port}",
            "client_kwargs": {"region_name": "eu-central-1"},
        }
    finally:
        server.stop()


def write_lines(store: FilesystemStore) -> None:
    """Rows whose label follows from two numbers, in files of a row group each."""
    rows = np.random.default_rng(0).normal(size=(NUM_FILES, NUM_LINES // NUM_FILES, 2))
    folder = store.get_localized_path(store.get_train_data_path())
    store.fs.makedirs(folder, exist_ok=True)
    for number, part in enumerate(rows):
        table = pa.table({"features": part.tolist(), "y": 2 * part[:, 0] - part[:, 1]})
        with store.fs.open(f"{folder}/part-{number}.parquet", "wb") as file:
            pq.write_table(table, file)


def fit(store: FilesystemStore, epochs: int) -> Any:
    """Trains a run, from its checkpoint if there is one."""
    return for_lines("torch", store, epochs=epochs, run_id="r").fit_on_parquet()


def test_a_run_in_a_bucket_is_that_on_a_disk(
    spark: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    on_disk = Store.create(str(tmp_path / "store"))
    in_bucket = Store.create("s3://bucket/experiments/one", storage_options=options)
    in_bucket.fs.mkdir("bucket")
    weights = []
    for store in (on_disk, in_bucket):
        write_lines(store)
        fit(store, epochs=1)
        assert store.exists(store.get_run_path("r") + "/checkpoint")
        model = fit(store, epochs=3)
        assert [each["epoch"] for each in model.getHistory()] == [0, 1, 2]
        weights.append(torch.cat([each.reshape(-1) for each in model.getModel().parameters()]))
    assert torch.equal(*weights)
    names = in_bucket.fs.find("bucket/experiments/one/runs/r")
    assert [name for name in names if name.endswith(".part")] == []


def test_a_bucket_that_is_not_there_is_named(spark: Any, options: dict[str, Any]) -> None:
    store = Store.create("s3://nowhere/experiments", storage_options=options)
    with pytest.raises(Exception, match="nowhere"):
        fit(store, epochs=1)
