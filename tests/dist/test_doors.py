"""docs/security.md lists every port, file and pickle; jobs of each kind use no others.

Each process of a job records what Horovod's code in it does (tests/quick_imports/audit_trail.py).
The tests of Ray and Spark compare their own jobs with the same lists.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from doors import listed, observed
from launcher import DEADLINE_S, environment, free_port, horovodrun, launched

pytestmark = pytest.mark.slow

PYTHON = sys.executable
COLLECTIVES = """
    import sys
    import horovod.torch as hvd

    hvd.init()
    assert len(hvd.allgather_object({"class": hvd.Compression.fp16})) == hvd.size()
    if "timeline" in sys.argv:
        hvd.start_timeline("timeline.json")
        hvd.barrier()
        hvd.stop_timeline()
"""
FUNCTION = """
    import operator
    import horovod

    assert horovod.run(operator.add, (1, 2), num_proc=2) == [3, 3]
"""
ELASTIC = """
    import torch
    import horovod.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    training = hvd.elastic.Training(model, optimizer)
    samples = torch.utils.data.TensorDataset(torch.ones(8, 2))
    for epoch in training.epochs(2):
        for (x,) in training.batches(torch.utils.data.DataLoader(samples, 2, shuffle=True)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
"""
LINE = """
    import os, time
    import horovod
    import horovod.torch as hvd

    hvd.init()
    while not os.path.exists("seen"):
        hvd.barrier()
        time.sleep(0.05)
    horovod.report_result(loss=1.0)
"""
CONSUME = """
    import tensorflow as tf
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    config = TfDataServiceConfig.read("compute.json", wait_for_file_creation=True)
    dataset = tf.data.Dataset.range(10).send_to_data_service(config, rank=0, size=1)
    assert len(list(dataset)) == 10
    config.compute_client().shutdown()
"""
# The servers of TensorFlow and PyTorch listen in native code. The rest is in tests of other kinds,
# or unpickles what names no class.
ELSEWHERE = {
    "horovod/runner/function/call.py",
    "horovod/testing/processes.py",
    "horovod/testing/rank_process.py",
    "horovod/tensorflow/data/compute_service.py",
    "horovod/_job/at_master.py",
    "horovod/ray/elastic_actor.py",
    "horovod/runner/dashboard/server.py",
    "horovod/_train/share_files.py",
    "horovod/spark/common/serialization.py",
    "horovod/spark/keras/estimator.py",
    "horovod/spark/keras/model.py",
    "horovod/spark/torch/model.py",
    "horovod/spark/torch/model_bytes.py",
}
SCRIPTS = {
    "collectives": COLLECTIVES,
    "function": FUNCTION,
    "elastic": ELASTIC,
    "line": LINE,
    "consume": CONSUME,
}


def run(*command: str, **env: str) -> None:
    subprocess.run(command, env=environment(**env), timeout=DEADLINE_S, check=True)


def job(*words: str, **env: str) -> None:
    done = horovodrun(*words, **env)
    assert done.process.returncode == 0, done.lines


def fixed(env: dict[str, str]) -> None:
    job("-np", "2", PYTHON, "collectives.py", "timeline", **env)
    job("-np", "2", "--output-filename", "out", PYTHON, "collectives.py", **env)


def function(env: dict[str, str]) -> None:
    run(PYTHON, "function.py", **env)


def elastic(env: dict[str, str]) -> None:
    words = ("-np", "2", "--min-np", "1", "--max-np", "2", "--checkpoint-dir", "commits")
    job(*words, "--join-file", "join", PYTHON, "elastic.py", **env)
    job(*words, PYTHON, "elastic.py", **env)  # goes on from the last commit


def joined(env: dict[str, str]) -> None:
    words = ("-np", "2", "-H", "localhost:1", "--min-np", "2", "--max-np", "2")
    words += ("--join-file", "join", PYTHON, "elastic.py")
    with launched(*words, **env) as launcher:
        while not Path("join").exists():
            assert launcher.process.poll() is None, launcher.lines
            time.sleep(0.05)
        with launched("--join", "join", "-H", "guest:1", **env) as guest:
            assert launcher.wait() == 0, (launcher.lines, guest.lines)


def nodes(env: dict[str, str]) -> None:
    env = {**env, "HOROVOD_SECRET_KEY": secrets.token_hex(32)}
    with ExitStack() as stack:
        address = f"127.0.0.1:{stack.enter_context(free_port())}"
        for rank in ("1", "0"):
            words = ("-np", "2", "--num-nodes", "2", "--node-rank", rank, "--rendezvous", address)
            node = stack.enter_context(launched(*words, PYTHON, "collectives.py", **env))
        assert node.wait() == 0, node.lines


def slurm(env: dict[str, str]) -> None:
    """Ranks that find each other through a file in the user's home."""
    of_slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    command = [PYTHON, "collectives.py"]
    ranks = [
        subprocess.Popen(command, env=environment(**env, **of_slurm, SLURM_PROCID=rank))
        for rank in ("0", "1")
    ]
    assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0]


def torch_variables(env: dict[str, str]) -> None:
    """Ranks that find each other as those of torchrun do on one host."""
    of_torch = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        of_torch["MASTER_PORT"] = str(server.getsockname()[1])
        command = [PYTHON, "collectives.py"]
        ranks = [
            subprocess.Popen(command, env=environment(**env, **of_torch, RANK=rank))
            for rank in ("0", "1")
        ]
        assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0]


def job_file(env: dict[str, str]) -> None:
    line = f"{PYTHON} line.py"
    data = {"project": "p", "train": {"horovod": {"workers": 1}, "run": [line]}}
    Path("job.yml").write_text(json.dumps(data))
    with launched("-f", "job.yml", **env) as running:
        while not Path("output/p/1/experiment.json").exists():
            assert running.process.poll() is None, running.lines
            time.sleep(0.05)
        words = ("experiment", "monitor", "-f", "job.yml", "--prometheus", "0", "1")
        with launched(*words, **env) as serving:
            (told,) = serving.wait_lines("stdout", "http://127")
            assert "horovod" in read_metrics(told.split(",")[0], told)
        Path("seen").touch()
        assert running.wait() == 0, running.lines


def measured(env: dict[str, str]) -> None:
    words = ("-np", "1", "--metrics-port", "0", PYTHON, "line.py")
    with launched(*words, **env) as running:
        (told,) = running.wait_lines("stderr", "metrics: ")
        url = told.split("metrics: ")[1].split(";")[0]
        deadline_at = time.monotonic() + DEADLINE_S
        while "horovod" not in read_metrics(url, told):  # empty until the ranks have reported
            assert time.monotonic() < deadline_at, running.lines
            time.sleep(0.05)
        Path("seen").touch()
        assert running.wait() == 0, running.lines


def read_metrics(url: str, told: str) -> str:
    """Return the metrics at an address; the line that tells of it ends with the token's file."""
    token = Path(told.split()[-1]).read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        text: str = response.read().decode()
    return text


def data_service(env: dict[str, str]) -> None:
    pytest.importorskip("tensorflow")
    worker = "horovod.tensorflow.data.compute_worker"
    words = ("-np", "1", PYTHON, "-m", worker, "--serve-without-authentication", "compute.json")
    with launched(*words, **env) as serving:
        run(PYTHON, "consume.py", **env)
        assert serving.wait() == 0, serving.lines


KINDS = {
    kind.__name__: kind
    for kind in (
        fixed,
        function,
        elastic,
        joined,
        nodes,
        slurm,
        torch_variables,
        job_file,
        measured,
        data_service,
    )
}


class Recorded:
    """What jobs of each kind have done; each runs once, when somebody asks."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._done: dict[str, set[tuple[str, str]]] = {}

    def of(self, kind: str) -> set[tuple[str, str]]:
        if kind not in self._done:
            folder = self._folders.mktemp(kind)
            for name, text in SCRIPTS.items():
                (folder / f"{name}.py").write_text(textwrap.dedent(text))
            (trail := folder / "trail").mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                KINDS[kind]({"AUDIT_TRAIL": str(trail), "HOME": str(folder)})
            self._done[kind] = observed(trail)
        return self._done[kind]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory)


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_open_only_what_the_document_lists(kind: str, recorded: Recorded) -> None:
    done = recorded.of(kind)
    assert done, "nothing was recorded"
    assert done <= listed(), f"not in docs/security.md: {sorted(done - listed())}"


def test_the_document_lists_only_what_jobs_open(recorded: Recorded) -> None:
    opened = {cause for kind in KINDS for _, cause in recorded.of(kind)}
    named = {cause for _, cause in listed()} - ELSEWHERE
    assert named == opened
