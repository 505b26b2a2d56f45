"""Libraries over torch.distributed, each started in its own way, on gloo and on Horovod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from horovod._rendezvous.reserved_port import reserve_port

HERE = Path(__file__).parent
PYTHON = str(Path(sys.prefix) / "clients" / "bin" / "python")
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [
    PYTHON, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2",
    "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
]  # fmt: skip
CLIENTS = {
    "accelerate under torchrun": [*TORCHRUN, "accelerate_training.py"],
    "accelerate under mpirun": [
        *ACCELERATE,
        "--mpirun_hostfile",
        "HOSTS",
        "accelerate_training.py",
    ],
    "transformers.Trainer under torchrun": [*TORCHRUN, "trainer_training.py"],
    "Lightning's own launcher": [PYTHON, "lightning_fit.py", "popen"],
    "Lightning's launcher that forks": [PYTHON, "lightning_fit.py", "fork"],
}
LIMIT_S = 300


def train(client: str, backend: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    """Return the weights of both ranks after a training by a client."""
    hosts = folder / "hosts"
    hosts.write_text("localhost slots=2\n")
    command = [str(hosts) if word == "HOSTS" else word for word in CLIENTS[client]]
    place = next(i for i, word in enumerate(command) if word.endswith(".py"))
    command[place] = str(HERE / command[place])
    command[place + 1 : place + 1] = [backend, str(folder)]
    own = {"OMP_NUM_THREADS": "1"}
    with reserve_port() as reserved:
        if "HOSTS" in CLIENTS[client]:  # what mpirun does not tell, and wants of root
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved.getsockname()[1])}
            own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            command, env=os.environ | own, timeout=LIMIT_S, capture_output=True, text=True
        )
    assert done.returncode == 0, f"{backend}:\n{done.stdout}{done.stderr}"
    return [torch.load(folder / f"{backend}.{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_trains_as_on_gloo(client: str, tmp_path: Path) -> None:
    expected, got = (train(client, backend, tmp_path) for backend in ("gloo", "horovod"))
    for rank in range(2):
        assert got[rank].keys() == expected[rank].keys()
        for name, tensor in expected[rank].items():
            assert torch.equal(got[rank][name], tensor), f"{name} of rank {rank}"
