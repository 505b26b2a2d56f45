"""`horovodrun -f FILE --backend ray`: each worker of a job file is an actor of the cluster."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.ray.ray_waits import wait_until

from horovod.ray import job_lines
from horovod.runner.experiment.grid import Line
from horovod.runner.output.console import Console
from horovod.runner.starting.requests import Caller
from horovod.runner.supervision.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = [sys.executable, "-m", "horovod.runner.cli"]
# The file of RiseML's documents, with two workers, without GPUs and with a line that prepares.
RISEML = """\
project: example
train:
  framework: tensorflow
  tensorflow:
    version: 1.5.0
    horovod:
      workers: 2
  resources:
    gpus: 0
    cpus: 1
    mem: 4096
  run:
  - test "$HOROVOD_RANK" != 0 || echo prepared > "$OUTPUT_DIR/data"
  - {python} {look}
  - cat "$OUTPUT_DIR/data"; {python} {digits} --epochs 4
"""

# A rank that looks for the secret of its job where all processes of the user can read it.
SECRETS = """\
import psutil
for process in [psutil.Process(), *psutil.Process().parents()]:
    try:
        text = process.environ().get("HOROVOD_SECRET_KEY", "")
    except psutil.AccessDenied:
        continue
    assert not text, process
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)


def start(text: str, *words: str) -> subprocess.Popen[str]:
    Path("job.yml").write_text(text)
    return subprocess.Popen(
        [*HOROVODRUN, "-f", "job.yml", "--backend", "ray", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(text: str, *words: str) -> tuple[int, str, str]:
    process = start(text, *words)
    stdout, stderr = process.communicate(timeout=240)
    return process.returncode, stdout, stderr


def events(run: str = "1") -> list[dict[str, Any]]:
    lines = Path(f"output/p/{run}/events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def job_file(*lines: str, processes: int = 1) -> str:
    workers = {"count": 2, "processes": processes}
    return json.dumps({"project": "p", "train": {"horovod": {"workers": workers}, "run": lines}})


def test_the_digits_are_trained_on_a_cluster() -> None:
    digits = shlex.quote(str(ROOT / "examples/pytorch/digits.py"))
    Path("look.py").write_text(SECRETS)
    text = RISEML.replace("{python}", shlex.quote(sys.executable)).replace("{digits}", digits)
    text = text.replace("{look}", "look.py")
    code, stdout, stderr = run(text)
    assert code == 0, stderr
    assert "TensorFlow 1.5.0: no current Python supports it" in stderr
    assert "on 2 rank(s)" in stdout
    for rank in range(2):
        told = Path(f"output/example/1/logs/line-03/rank.{rank}/stdout").read_text()
        assert told.startswith("prepared\n")


def test_a_secret_of_the_user_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[Any] = []

    def execution(executor: object, node: object, options: object) -> Any:
        nodes.append(node)
        return SimpleNamespace(run=lambda: Outcome(0, ""))

    monkeypatch.setattr(job_lines, "_Execution", execution)
    names = ("HOROVOD_SECRET_KEY", "HOROVOD_SECRET_FILE", "HOROVOD_CYCLE_TIME", "HOME")
    settings: Any = SimpleNamespace(
        environ=dict.fromkeys(names, "1"), variables={"LR": "2"}, grace_s=3, command=[], cwd="."
    )
    options: Any = SimpleNamespace(start_timeout_s=None, output_filename=None)
    launch = job_lines.make_launch(1, None, 0)
    request: Any = SimpleNamespace(settings=settings, options=options, slots=[])
    with Console(None, None) as console:
        launch(Line("a"), request, Caller(console))
    assert nodes[0]._variables == {
        "HOROVOD_CYCLE_TIME": "1", "LR": "2", "HOROVOD_GRACE_SECONDS": "3"
    }  # fmt: skip


def test_the_first_failure_stops_everything() -> None:
    fails = 'echo "$HOROVOD_SIZE $HOROVOD_RANK"; [ $HOROVOD_RANK != 2 ] || exit 7; exec sleep 1000'
    code, stdout, stderr = run(job_file(fails, "touch second", processes=2))
    assert code == 7
    assert "run 1: line 1 of 2 failed" in stderr
    assert "horovodrun: rank 2 on" in stderr
    assert sorted(line.split(":")[1] for line in stdout.splitlines()) == [
        f"4 {rank}" for rank in range(4)
    ]
    assert events()[-1]["state"] == "failed"
    assert not Path("second").exists()


def test_ctrl_c_ends_the_ranks() -> None:
    process = start(job_file("echo $$ > pid.$HOROVOD_RANK; sleep 1000; true", "touch second"))
    paths = [Path(f"pid.{rank}") for rank in range(2)]
    wait_until(lambda: all(path.exists() and path.read_text().strip() for path in paths))
    ranks = [psutil.Process(int(path.read_text())) for path in paths]
    ranks += [child for rank in ranks for child in rank.children()]
    assert len(ranks) == 4
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    _, alive = psutil.wait_procs(ranks, 40)
    assert not alive
    assert events()[-1]["state"] == "killed"
    assert not Path("second").exists()


def test_a_cluster_without_room_and_what_does_not_go_together() -> None:
    code, stdout, _ = run(job_file("true"), "--dry-run")
    assert (code, "ranks 0 to 1 on a Ray cluster\n" in stdout) == (0, True)
    for text, words, said in (
        (job_file("true"), ["-H", "a,b"], "--backend ray: name no hosts"),
        (
            "version: 2\nproject: p\ntrain: {run: [a], elastic: {min: 1}}\n",
            [],
            "elastic, which needs hosts",
        ),
    ):
        code, _, stderr = run(text, *words)
        assert (code, said in stderr) == (2, True)
    assert os.listdir() == ["job.yml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_worker_says_that_a_full_disk_has_cut_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.ray import job_lines

    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setattr(job_lines.ray_logger, "log", lambda item: None)
    (full := tmp_path / "full").mkdir()
    words = ["-np", "1", "--num-nodes", "1", "--output-filename", str(full / "logs")]
    script = "for _ in range(1000): print('x' * 1000)"
    node = job_lines._Node(words, [sys.executable, "-c", script], str(tmp_path), {})
    node.address = job_lines._free_address()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(full)], check=True)
    try:
        code, error = node()
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert code == 0
    assert "No space left on device" in error
