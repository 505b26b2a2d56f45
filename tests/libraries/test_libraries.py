"""Libraries of the field train on Horovod: `make test-libraries`, which installs them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deepmd_data import STEPS, write_all

FOLDER = Path(__file__).parent
PYTHON = Path(sys.prefix) / "libraries" / "bin" / "python"
DEADLINE_S = 300.0

RANKS_AS_ONE = {
    "sum": [1.0, 2.0],
    "average": [0.5, 1.0],
    "max": [1.0, 1.0],
    "number": 3,
    "gathered": [0.0, 1.0, 1.0, 1.0],
    "objects": ["rank 0", "rank 1"],
    "broadcast": [1.0, 1.0],
}


def run(*command: object, folder: Path | None = None, **variables: str) -> str:
    """Runs a command to its good end, and returns what it printed to both streams."""
    job = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert job.returncode == 0, job.stdout
    return job.stdout


def on_two_ranks(*command: object, **options: Any) -> str:
    """Runs a command under horovodrun."""
    launcher = (sys.executable, "-m", "horovod.runner.cli", "-np", "2")
    return run(*launcher, PYTHON, *command, **options)


def said(output: str) -> list[Any]:
    """What each rank printed as JSON."""
    found = []
    for rank in range(2):
        prefix = f"[{rank}]<stdout>:"
        lines = [line.removeprefix(prefix) for line in output.splitlines() if prefix in line]
        (line,) = (line for line in lines if line.startswith(("{", "[")))
        found.append(json.loads(line))
    return found


@pytest.mark.parametrize("launcher", ["horovodrun", "spawn"])
def test_ignite(launcher: str) -> None:
    script = FOLDER / "ignite_training.py"
    output = on_two_ranks(script) if launcher == "horovodrun" else run(PYTHON, script, "spawn")
    ranks = said(output)
    for number, rank in enumerate(ranks):
        assert (rank["rank"], rank["size"]) == (number, 2)
        assert (rank["backend"], rank["model"]) == ("horovod", "horovod-dist")
        assert rank["optimizer"] == "<class 'horovod.torch.optimizer.SGD'>"
        group = rank["collectives"].pop("in a group")
        assert group == [number, 1.0]
        assert rank["collectives"] == RANKS_AS_ONE
        # Measured over both ranks, of which each has half of the images, and one of them twice.
        assert rank["metrics"]["accuracy"] == pytest.approx(rank["accuracy"], abs=0.005)
        assert rank["accuracy"] > 0.9
    # The same weights before and after, to the last bit, and the same metrics.
    for key in ("before", "after", "metrics"):
        assert ranks[0][key] == ranks[1][key], key
    assert ranks[0]["before"] != ranks[0]["after"]


def test_lightning() -> None:
    ranks = said(on_two_ranks(FOLDER / "lightning_training.py"))
    for number, trainings in enumerate(ranks):
        plain, accumulated, wrapped = trainings
        assert accumulated["steps"] * 2 == plain["steps"] == wrapped["steps"]
        assert accumulated["passes"] == 2
        for training in trainings:
            assert training["strategy"] == "HorovodStrategy"
            assert (training["rank"], training["size"]) == (number, 2)
            # Wrapped once, whoever did it.
            assert training["optimizer"] == "<class 'horovod.torch.optimizer.SGD'>"
            assert training["inside"] == "<class 'torch.optim.sgd.SGD'>"
            assert training["gathered"] == [0.0, 1.0]
            assert training["broadcast"] == "rank 1"
            assert training["metric"] == pytest.approx(training["accuracy"], abs=0.005)
            assert training["accuracy"] > 0.9
    for first, second in zip(*ranks, strict=True):
        assert first["after"] == second["after"]
        assert first["metric"] == second["metric"]


def test_deepmd(tmp_path: Path) -> None:
    settings, timeline = write_all(tmp_path), tmp_path / "timeline.json"
    # It asks mpi4py for the names of hosts; each rank is a world of its own there.
    mpi4py = importlib.util.find_spec("mpi4py")
    assert mpi4py is not None
    assert mpi4py.origin is not None
    output = on_two_ranks(
        *("-m", "deepmd", "--tf", "train", settings),
        folder=tmp_path,
        MPI4PY_LIBMPI=str(Path(mpi4py.origin).parents[3] / "libmpi.so.40"),
        HOROVOD_TIMELINE=str(timeline),
    )
    assert "Scale learning rate by coef: 2.0" in output
    assert "broadcast global variables to other tasks" in output
    rows = [line.split() for line in (tmp_path / "lcurve.out").read_text().splitlines()]
    errors = {int(row[0]): float(row[1]) for row in rows if row[0] != "#"}
    assert errors[STEPS] < errors[0] / 4, errors
    # Both ranks reduced gradients in each step.
    events = json.loads(timeline.read_text())
    reduced = [event["pid"] for event in events if event.get("name") == "ALLREDUCE"]
    assert sorted(reduced) == [0] * STEPS + [1] * STEPS
    assert (tmp_path / "model.ckpt.index").exists()


@pytest.mark.parametrize("library", ["ignite", "lightning"])
def test_logs_as_documented(library: str, tmp_path: Path) -> None:
    """The program of docs/logging.md runs, and writes averages once."""
    page = (FOLDER.parents[1] / "docs" / "logging.md").read_text()
    (program,) = (
        block.partition("```")[0]
        for block in page.split("```python\n")[1:]
        if library in block.partition("```")[0]
    )
    (tmp_path / "log.py").write_text(program)
    metrics = tmp_path / "metrics.jsonl"
    on_two_ranks(tmp_path / "log.py", HOROVOD_LOG=f"jsonl:{metrics}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    first = lines[0]["step"]
    assert [line["step"] for line in lines] == list(range(first, first + len(lines)))
    assert len(lines) == {"ignite": 4, "lightning": 2}[library]
    assert all(line["values"].keys() == {"loss"} for line in lines)
