"""Writes files of this version: ``python tests/data/kept_formats.py tests/data/VERSION``.

Later versions must read them (decision 0068). Nothing in an existing folder is changed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

import horovod.torch as hvd
from horovod._train.elastic.checkpoint.commits import Commits, Snapshot
from horovod._train.elastic.checkpoint.folder import LocalFolder
from horovod.testing import run_ranks

KEPT_HOST = "kept-host"
JOB = """\
version: 2
project: kept
train:
  parameters:
    lr: [0.1, 0.2]
  metrics: {loss: min}
  run:
    - python report.py {{lr}}
"""
REPORT = "import horovod, sys; horovod.report_result(loss=float(sys.argv[1]) * 2)"


def values() -> dict[str, Any]:
    """Return attributes of a state, of every kind that a commit can hold."""
    return {
        "number": 2**70,
        "float": -0.1,
        "text": "ä\n",
        "bytes": b"\x00\xff",
        "nested": {1: "one", (2, 3): [None, {"x": (True, 1 - 2j)}]},
        "set": frozenset({1, 2}),
        "ordered": OrderedDict(b=1, a=2),
        "deque": deque([1, 2], maxlen=2),
        "random": random.Random(1).getstate(),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "scalar": np.float32(0.5),
        "tensor": torch.arange(4.0).reshape(2, 2),
        "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
    }


def optimizer_with_shares() -> tuple[torch.nn.Module, Any]:
    """Return a small model, and its optimizer with the state in shares."""
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.5, betas=(0.8, 0.9)),
        model.named_parameters(),
        shard_state=True,
    )
    return model, optimizer


def moments_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the state of each parameter as plain numbers, which JSON keeps exactly."""
    state = optimizer.state_dict()["state"]
    return [
        {name: torch.as_tensor(value).tolist() for name, value in sorted(state[index].items())}
        for index in sorted(state)
    ]


def _save_shares(folder: Path) -> list[dict[str, Any]]:
    model, optimizer = optimizer_with_shares()
    with torch.no_grad():
        for index, param in enumerate(model.parameters()):
            param.fill_(0.25 * (index + 1))
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 3), step + 1.0, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    moments = moments_of(optimizer)
    optimizer.save_shares(folder).wait()
    return moments


def _write_commit(folder: Path) -> None:
    commits = Commits(LocalFolder(str(folder)), 1)
    kept = {"model": {"weight": torch.ones(2, 2), "step": 7}}
    commits.made(lambda: Snapshot(kept, values()), rank=0)
    commits.finish(writes=True)


def _run(*words: str, cwd: str, **env: str) -> None:
    command = [sys.executable, "-m", "horovod", *words]
    subprocess.run(command, cwd=cwd, env=os.environ | env, check=True)


def _write_jobs(folder: Path, work: str) -> None:
    Path(work, "job.yml").write_text(JOB)
    Path(work, "report.py").write_text(REPORT)
    _run("-f", "job.yml", cwd=work)
    made = Path(work, "output", "kept", "1")
    path = made / "experiment.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"host": KEPT_HOST}))
    shutil.copytree(made, folder / "experiment" / "1")
    Path(work, "rank.py").write_text(
        "import torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "hvd.allreduce(torch.ones(4), name='loss')\n"
        "hvd.broadcast(torch.ones(1), 0, name='model')\n"
        "hvd.shutdown()\n"
    )
    timeline = str(folder / "timeline.json")
    _run("-np", "2", sys.executable, "rank.py", cwd=work, HOROVOD_TIMELINE=timeline)
    text = Path(timeline).read_text().replace(f"({os.uname().nodename}:", f"({KEPT_HOST}:")
    Path(timeline).write_text(text.replace("(localhost:", f"({KEPT_HOST}:"))


def _write_elastic(folder: Path) -> None:
    """A job whose workers are asked to end in the second epoch; tests/dist continues it."""
    worker = str(Path(__file__).parents[1] / "dist" / "restarted_worker.py")
    words = ["-np", "2", "--min-np", "1", "-H", "localhost:2", "--checkpoint-dir", str(folder)]
    command = [sys.executable, "-m", "horovod", *words, sys.executable, worker, str(folder)]
    with subprocess.Popen([*command, "hold", "rarely"], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        held = 0
        for line in job.stdout:
            held += "holds" in line
            if held == 2:
                job.terminate()
                held = 0


def main(target: str) -> None:
    folder = Path(target).resolve()
    folder.mkdir(parents=True)  # an existing one is kept as it is
    moments, *_ = run_ranks(2, _save_shares, folder / "shares")
    (folder / "shares.expected.json").write_text(json.dumps(moments))
    _write_commit(folder / "commits")
    _write_elastic(folder / "elastic")
    with tempfile.TemporaryDirectory() as work:
        _write_jobs(folder, work)


if __name__ == "__main__":
    main(*sys.argv[1:])
