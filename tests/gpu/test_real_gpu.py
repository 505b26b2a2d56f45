"""The contract on a real GPU: one rank, and several that share it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checks import CHECKS
from jax_lacking import lacking
from real_ranks import (
    reduce_much,
    reduce_on_both_devices,
    run_contract,
    train_with_fewer_bytes,
)
from torch_training import RECIPES, check_equal, train_alone, train_many_on_gpu

import horovod

_NAMES = [check.__name__ for check in CHECKS]
_MOST_BYTES = 256 * 1024 * 1024
_JAX = Path(__file__).resolve().parents[1] / "jax"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_contract_on_one_gpu(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "120")
    results = horovod.run(run_contract, num_proc=size)
    assert [names for names, _ in results] == [_NAMES] * size
    assert [elsewhere for _, elsewhere in results] == [[]] * size, "contexts on other GPUs"


@pytest.mark.parametrize("size", [1, 2])
def test_memory_of_the_gpu_is_left_to_the_program(size: int) -> None:
    assert all(taken < _MOST_BYTES for taken in horovod.run(reduce_much, num_proc=size))


def test_training_is_that_of_one_process_with_all_data() -> None:
    everyones = horovod.run(train_many_on_gpu, (list(RECIPES),), num_proc=2)
    for name, (recipe, tolerance) in RECIPES.items():
        # A GPU adds in another order than the CPU.
        check_equal([mine[name] for mine in everyones], train_alone(2, recipe), 10 * tolerance)


@pytest.mark.parametrize("way", ["fp16", "auto", "powersgd", "LocalSGD", "DiLoCo"])
def test_ranks_that_send_less_learn_and_stay_equal(way: str) -> None:
    for first, last, are_equal in horovod.run(train_with_fewer_bytes, (way,), num_proc=2):
        assert last < first
        assert are_equal


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nccl_between_gpus() -> None:
    everyones = horovod.run(
        train_many_on_gpu, (list(RECIPES), True), num_proc=min(4, torch.cuda.device_count())
    )
    size = len(everyones)
    for name, (recipe, tolerance) in RECIPES.items():
        check_equal([mine[name] for mine in everyones], train_alone(size, recipe), 10 * tolerance)


def test_one_group_of_torch_distributed_has_both_devices() -> None:
    expected = [[0.0, 1.0, 2.0]] * 4
    assert horovod.run(reduce_on_both_devices, num_proc=1) == [expected]


@pytest.mark.parametrize("mode", ["eager", "jitted"])
def test_jax_contract_on_one_gpu(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("optax", reason="the contract of JAX needs jax and optax")
    platforms = "import jax; print({each.platform for each in jax.devices()})"
    variables = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # ranks share the GPU
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
        "HVD_TEST_JAX_PROGRAMS": str(tmp_path),
    }

    def said(*command: str) -> str:
        return subprocess.run(
            command, env=variables, check=True, stdout=subprocess.PIPE, text=True, timeout=240
        ).stdout

    if "gpu" not in said(sys.executable, "-c", platforms):
        pytest.skip("JAX has no GPU here")
    script = str(_JAX / "jax_contract_rank.py")
    launch = "import sys; from horovod.runner.cli import main; sys.exit(main())"
    lines = said(
        sys.executable, "-c", launch, "-np", "2", sys.executable, script, mode
    ).splitlines()
    for name in {*_NAMES} - lacking():
        assert sum(line.endswith(name) for line in lines) == 2, name
