"""Tests on a real Spark cluster of two executors: `make test-spark`. They need Spark."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """The session of all tests: two executors of one core and one GPU each, without pages."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    script = folder / "gpus.sh"
    script.write_text(GPUS)
    script.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = sys.executable
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
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
