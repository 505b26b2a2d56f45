"""Ranks in tasks of a server of Spark Connect, which has neither RDDs nor a SparkContext."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import sys

from pyspark.sql import SparkSession
from tests.spark.spark_training import raise_error, rank
import horovod.spark
from horovod.errors import RankFailedError
from horovod.spark.common.backend import default_num_proc

session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print("size", default_num_proc())
print("run", horovod.spark.run(rank, (5,), num_proc=2))
print("elastic", horovod.spark.run_elastic(rank, (6,), num_proc=2))
try:
    horovod.spark.run(raise_error, (1,), num_proc=2)
except RankFailedError as error:
    print("failed", error.rank, "it was me" in error.traceback)
session.stop()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_status") is None, reason="pyspark[connect] is not installed"
)
def test_a_client_runs_jobs_on_a_server(spark: Any) -> None:
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    url = f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, url],
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert lines == [
        "size 2",
        "run [(0, 5), (1, 5)]",
        "elastic [(0, 6), (1, 6)]",
        "failed 1 True",
    ], done.stderr
