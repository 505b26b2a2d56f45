"""What `horovodrun experiment export` writes does run: each line on all ranks, in turn."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from launcher import DEADLINE_S, environment, free_port

from horovod.runner.experiment.export import FORMATS
from horovod.runner.experiment.job_file import parse_job_file
from horovod.runner.experiment.kubernetes import Wishes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def text_of(kind: str, source: str) -> str:
    return FORMATS[kind](parse_job_file(source, "job.yml"), Wishes("an/image"))


def pod_script(source: str) -> tuple[str, dict[str, str]]:
    """What each pod of an Indexed Job runs, and its variables but for the secret."""
    job = list(yaml.safe_load_all(text_of("job", source)))[1]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    variables = {each["name"]: _expanded(each["value"]) for each in container["env"][1:]}
    return _expanded(container["args"][0]), variables


def _expanded(text: str) -> str:
    """What Kubernetes makes of it, if no variable is named."""
    return re.sub(r"\$\$", "$", text)


LINES = """\
project: digits
train:
  horovod: {workers: {count: 2, processes: 2}}
  parameters: {text: ["it's"]}
  run:
  - test $$ != 0; echo "$HOROVOD_RANK" {{text}} > "$OUTPUT_DIR/one.$HOROVOD_RANK"
  - cat "$OUTPUT_DIR"/one.* > "$OUTPUT_DIR/two.$HOROVOD_RANK"
  - if [ $HOROVOD_RANK = 3 ]; then exit 7; fi | cat; touch "$OUTPUT_DIR/on.$HOROVOD_RANK"
  - touch "$OUTPUT_DIR/after"
"""
GRID = """\
project: grid
train:
  horovod: {workers: 4}
  parameters: {lr-decay: [0.1, "it's"]}
  concurrency: 2
  run: 'echo $LR_DECAY >> "$OUTPUT_DIR/said"'
"""
WROTE = "".join(f"{rank} it's\n" for rank in range(4))


def assert_all_lines_were_barriers(folder: Path) -> None:
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert [found[f"two.{rank}"] for rank in range(4)] == [WROTE] * 4
    assert "after" not in found
    assert "on.3" not in found


@pytest.fixture
def port() -> Iterator[int]:
    with free_port() as port:
        yield port


def test_pods_run_each_line_together_and_stop_at_the_first_failure(
    tmp_path: Path, port: int
) -> None:
    script, variables = pod_script(LINES)
    env = {
        **environment(),
        **variables,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOROVOD_SECRET_KEY": secrets.token_hex(32),
        "OUTPUT_DIR": str(tmp_path / "output"),
        "RENDEZVOUS": f"127.0.0.1:{port}",
    }
    horovodrun = tmp_path / "horovodrun"
    horovodrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m horovod.runner.cli "$@"\n')
    horovodrun.chmod(0o755)
    pods = [
        subprocess.Popen(["sh", "-c", script], env={**env, "JOB_COMPLETION_INDEX": str(index)})
        for index in range(2)
    ]
    assert [pod.wait(DEADLINE_S) for pod in pods] == [7, 7]
    assert_all_lines_were_barriers(tmp_path / "output")


# Starts as many tasks as the script asks for, and waits for all.
SRUN = """\
#!/bin/bash
shift 2
for task in 0 1 2 3; do HOROVOD_RANK=$task "$@" & pids[task]=$!; done
code=0
for pid in "${pids[@]}"; do wait $pid || code=$?; done
exit $code
"""


def run_script(folder: Path, script: str, variables: Mapping[str, str]) -> int:
    srun = folder / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SLURM_CPUS_PER_TASK": "1", **variables}
    return subprocess.run(["bash", "-c", script], env=env, cwd=folder, check=False).returncode


def test_a_script_runs_each_line_together_and_stops_at_the_first_failure(tmp_path: Path) -> None:
    assert run_script(tmp_path, text_of("sbatch", LINES), {"SLURM_JOB_ID": "5"}) == 7
    assert_all_lines_were_barriers(tmp_path / "output" / "digits" / "5")


def test_the_runs_of_a_grid_are_an_array(tmp_path: Path) -> None:
    script = text_of("sbatch", GRID)
    assert "#SBATCH --array=1-2%2\n" in script
    for index in "12":
        task = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": index}
        run_script(tmp_path, script, task)
    folder = tmp_path / "output" / "grid"
    said = [(folder / f"7.{index}" / "said").read_text().split("\n")[0] for index in "12"]
    assert said == ["0.1", "it's"]
