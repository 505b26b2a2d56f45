"""Tests on a real Spark cluster of two executors: `make test-spark`. They need Spark."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Java starts sooner, and computes slower, which is the better bargain for a few rows: with one
# compiler instead of two, one thread that collects garbage, and no check of the classes of Spark.
JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote"
)

# Gives each of the two workers of the cluster a GPU of its own; nothing uses it.
GPUS = """#!/bin/sh
mkdir "$0.0" 2>/dev/null && number=0 || number=1
echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$number\\"]}"
"""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.exit(
            "tests/spark needs PySpark: `make test-spark` installs it, and runs them", returncode=5
        )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of all tests: two executors of one core and one GPU each, without pages.

    Where there is Spark Connect, its server is in it, too.
    """
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    script = folder / "gpus.sh"
    script.write_text(GPUS)
    script.chmod(0o755)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JAVA}
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        # There, Spark looks for a copy of its Python modules, in a file that cannot keep them
        # compiled. Without it, Python takes those of the environment.
        "spark.executorEnv.SPARK_HOME": str(folder),
    }
    if importlib.util.find_spec("grpc_status") is not None:
        settings |= {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.port": "0",
        }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def digits(spark: Any) -> Any:
    """Images of digits as vectors, their numbers, and which rows are for tests."""
    from pyspark.ml.linalg import Vectors
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = [
        (Vectors.dense(image), int(label), index % 5 == 0)
        for index, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    return spark.createDataFrame(rows, ["image", "digit", "is_test"]).cache()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    from horovod.spark.common.store import Store

    return Store.create(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def line(spark: Any) -> Any:
    """Rows whose label follows from two numbers."""
    import numpy as np
    from tests.spark.spark_models import NUM_LINES

    random = np.random.default_rng(0)
    rows = [(float(a), float(b), float(2 * a - b)) for a, b in random.normal(size=(NUM_LINES, 2))]
    return spark.createDataFrame(rows, ["a", "b", "y"])
