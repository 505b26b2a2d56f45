"""PyTorch's own clients of torch.distributed, on gloo and on Horovod: the results are equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("torch_programs.py")
PROGRAMS = [
    "ddp", "ddp_bucket_views", "ddp_static_graph", "ddp_unused_parameters", "ddp_no_sync",
    "ddp_join", "ddp_join_by_effective_size", "ddp_fp16_hook", "ddp_bf16_hook", "ddp_power_sgd",
    "zero_redundancy_optimizer",
    "fsdp2", "fsdp2_bf16", "dtensor", "tensor_parallel", "pipeline",
    "compiled_ddp", "compiled_collectives",
    "save_checkpoint",
]  # fmt: skip
LIMIT_S = 300
Found = list[dict[str, dict[str, torch.Tensor]]]


def run(backend: str, size: int, folder: Path, *programs: str) -> Found:
    """Return what each rank found, by program and name."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = ["--nproc-per-node", str(size), str(SCRIPT), backend, str(folder), *programs]
    done = subprocess.run([*torchrun, *script], timeout=LIMIT_S, capture_output=True, text=True)
    assert done.returncode == 0, f"{backend}:\n{done.stdout}{done.stderr}"
    return [torch.load(folder / f"{backend}.{rank}.pt") for rank in range(size)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Found]:
    """What two ranks found with each backend; that of Horovod writes the checkpoint last."""
    return {backend: run(backend, 2, folder, *PROGRAMS) for backend in ("gloo", "horovod")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_finds_what_it_finds_on_gloo(program: str, found: dict[str, Found]) -> None:
    for rank, (expected, got) in enumerate(zip(found["gloo"], found["horovod"], strict=True)):
        assert got[program], f"rank {rank} found nothing"
        assert expected[program].keys() == got[program].keys()
        for name, tensor in expected[program].items():
            assert torch.equal(got[program][name], tensor), f"{name} of rank {rank}"


def test_ranks_of_ddp_agree(found: dict[str, Found]) -> None:
    first, second = (of_rank["ddp"] for of_rank in found["horovod"])
    weights = [name for name in first if "weight" in name]
    assert weights
    assert all(torch.equal(first[name], second[name]) for name in weights)


def test_three_ranks_load_what_two_have_saved(found: dict[str, Found], folder: Path) -> None:
    saved = found["horovod"][0]["save_checkpoint"]
    for loaded in run("horovod", 3, folder, "load_checkpoint"):
        assert loaded["load_checkpoint"].keys() == saved.keys() - {"loss"}
        for name, tensor in loaded["load_checkpoint"].items():
            assert torch.equal(tensor, saved[name]), name
