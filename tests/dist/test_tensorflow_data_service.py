"""A compute job under horovodrun serves a training process, and ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from launcher import Launcher, environment

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tensorflow")

WORKER = "horovod.tensorflow.data.compute_worker"
ACCEPTED = "--serve-without-authentication"
END_S = 180.0
TRAINING = """
    import os, sys
    import tensorflow as tf
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
    dataset = tf.data.Dataset.range(1000).map(lambda number: number * 2)
    dataset = dataset.send_to_data_service(config, rank=0, size=1).batch(128)
    total = sum(int(tf.reduce_sum(batch)) for batch in dataset)
    assert total == 999 * 1000, total
    if sys.argv[2] == "polite":
        config.compute_client(verbose=2).shutdown()
    else:
        os._exit(7)
"""


@pytest.mark.parametrize("end", ["polite", "killed"])
def test_a_compute_job_serves_and_ends_with_the_training_job(tmp_path: Path, end: str) -> None:
    config = tmp_path / "compute.json"
    command = [sys.executable, "-c", textwrap.dedent(TRAINING), str(config), end]
    job = Launcher("-np", "2", sys.executable, "-m", WORKER, str(config), ACCEPTED)
    try:
        training = subprocess.run(command, env=environment(), timeout=END_S)
        code = job.wait(END_S)
    finally:
        job.process.kill()
    assert training.returncode == (0 if end == "polite" else 7)
    assert code == 0, job.lines
    told = [line for line in job.lines["stderr"] if "ended without shutting the compute" in line]
    assert len(told) == (0 if end == "polite" else 1)
    assert os.listdir(tmp_path) == []


def test_processes_that_cannot_be_shared_out_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "compute.json"
    command = [sys.executable, "-m", WORKER, str(config), ACCEPTED, "--dispatchers", "2"]
    job = Launcher("-np", "1", *command)
    assert job.wait(END_S) == 1
    assert any("give -np a multiple of --dispatchers" in line for line in job.lines["stderr"])
    assert not config.exists()
