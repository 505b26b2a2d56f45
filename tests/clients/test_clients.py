"""Libraries train on two ranks with one word changed: the weights that gloo gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
DEADLINE_S = 240.0
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
COMMANDS = {
    "accelerate": [*TORCHRUN, "accelerate_training.py"],
    "transformers": [*TORCHRUN, "transformers_training.py"],
    "Lightning-ddp": ["lightning2_training.py"],
}


def train(command: list[str], backend: str, file: Path) -> list[torch.Tensor]:
    """Run a client and return what it has learnt."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [str(PYTHON), *command, backend, str(file)],
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    weights: list[torch.Tensor] = torch.load(file)
    return weights


@pytest.mark.parametrize("name", COMMANDS)
def test_weights_are_those_of_gloo(name: str, tmp_path: Path) -> None:
    theirs, ours = (
        train(COMMANDS[name], backend, tmp_path / backend) for backend in ("gloo", "horovod")
    )
    assert len(ours) == len(theirs) > 0
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.equal(mine, expected)
