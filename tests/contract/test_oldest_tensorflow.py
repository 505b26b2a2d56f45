"""The contract suite for horovod.tensorflow, and Keras 2, on the oldest TensorFlow that works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import CHECKS

import horovod

pytest.importorskip("tf_keras")

from keras2_cases import expected_names
from tensorflow_api import LACKING, MODES

# The matrix names other environments: tests/matrix.
PYTHON = Path(sys.prefix) / os.environ.get("TENSORFLOW_ENVIRONMENT", "oldest") / "bin" / "python"
RANK = Path(__file__).with_name("oldest_tensorflow_rank.py")
DEADLINE_S = 300.0

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="`make test-oldest` installs the oldest TensorFlow; it is not here"
)


@pytest.mark.slow
def test_contract(tmp_path: Path) -> None:
    # Horovod alone: beside it lie the packages of a newer TensorFlow.
    (tmp_path / "horovod").symlink_to(Path(horovod.__file__).parent)
    job = subprocess.run(
        [sys.executable, "-m", "horovod.runner.cli", "-np", "2", PYTHON, RANK],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    names = [check.__name__ for check in CHECKS if check.__name__ not in LACKING]
    for rank in range(2):
        prefix = f"[{rank}]<stdout>:"
        said = [line.removeprefix(prefix) for line in job.stdout.splitlines() if prefix in line]
        version, *done = said
        # TensorFlow 2.16 brings Keras 3.
        cases = expected_names() if int(version.split(".")[1]) < 16 else []
        assert done == [f"{mode} {name}" for mode in MODES for name in names] + cases
