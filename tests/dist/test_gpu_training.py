"""Training on GPUs between real processes, and what is said when something goes wrong there.

The driver and NCCL are fakes, which fail as they are told.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gpu_ranks import NCCL, SHARED, STAGED, Way, variables
from launcher import Launcher, launched
from torch_training import RECIPES, check_equal, train_alone, train_many_on_gpu

import horovod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = pytest.mark.slow

FAULTY_RANK = str(Path(__file__).with_name("gpu_faulty_rank.py"))
_STALLS = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1",
}


@pytest.mark.parametrize(
    ("way", "size"), [(NCCL, 2), (STAGED, 3), (SHARED, 2)], ids=["nccl", "staged", "shared"]
)
def test_training_is_that_of_one_process_with_all_data(
    way: Way, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(way).items():
        monkeypatch.setenv(name, value)
    names = ["sgd", "adam_float32", "listed_groups", "fp16", "clip"]
    everyones = horovod.run(train_over_fakes, (names,), num_proc=size)
    for name in names:
        recipe, tolerance = RECIPES[name]
        check_equal([mine[name] for mine in everyones], train_alone(size, recipe), tolerance)


def train_over_fakes(names: list[str]) -> object:
    """What each rank does."""
    from gpu_ranks import in_this_process

    with in_this_process() as (_, way):
        return train_many_on_gpu(names, spread=not way.shared)


def run_faulty(fault: str, way: Way, culprit: int = 1, nccl: str = "", **env: str) -> Launcher:
    words = [sys.executable, FAULTY_RANK, fault, str(culprit)]
    with launched("-np", "3", *words, **variables(way, nccl=nccl), **env) as launcher:
        launcher.wait()
    return launcher


def errors_after_fault(launcher: Launcher) -> dict[int, tuple[float, str]]:
    """By rank, seconds from the fault to the error, and the error."""
    output = "\n".join(launcher.lines["stdout"])
    planted = re.search(r"fault ([\d.]+)", output)
    assert planted, output + launcher.stderr
    errors = re.findall(r"\[(\d+)\]<stdout>:error ([\d.]+) (.*)", output)
    return {int(rank): (float(at) - float(planted[1]), text) for rank, at, text in errors}


@pytest.mark.parametrize("way", [NCCL, SHARED], ids=["nccl", "shared"])
def test_a_killed_rank_is_named_at_once(way: Way) -> None:
    launcher = run_faulty("kill", way)
    errors = errors_after_fault(launcher)
    assert sorted(errors) == [0, 2], launcher.stderr
    for elapsed_s, text in errors.values():
        assert elapsed_s < 2.0
        assert text.startswith("PeerLostError"), text
        assert re.search(r"rank 1 \(\S+:\d+\)", text), text


@pytest.mark.parametrize("fault", ["async_error", "fail"])
def test_an_error_of_nccl_is_everyones(fault: str) -> None:
    launcher = run_faulty("nccl", NCCL, nccl=f"{fault}:allreduce:3@1")
    errors = errors_after_fault(launcher)
    assert sorted(errors) == [0, 1, 2], launcher.stderr
    for elapsed_s, text in errors.values():
        assert elapsed_s < 2.0
        assert "NCCL" in text, text
        assert re.search(r"rank 1\b", text), text


def test_a_collective_that_hangs_on_the_device_ends_with_the_stall_deadline() -> None:
    launcher = run_faulty("nccl", NCCL, nccl="hang:allreduce:3@1", **_STALLS)
    errors = errors_after_fault(launcher)
    assert sorted(errors) == [0, 1, 2], launcher.stderr
    for elapsed_s, text in errors.values():
        assert elapsed_s < 3.0
        assert "allreduce.last" in text, text


@pytest.fixture(scope="module")
def jobs_with_a_stopped_rank() -> Iterator[dict[Way, Future[Launcher]]]:
    """They wait for their deadlines together."""
    with ThreadPoolExecutor() as pool:
        yield {way: pool.submit(run_faulty, "stop", way, **_STALLS) for way in (NCCL, SHARED)}


@pytest.mark.parametrize("way", [NCCL, SHARED], ids=["nccl", "shared"])
def test_a_stopped_rank_is_named_with_the_stall_deadline(
    way: Way, jobs_with_a_stopped_rank: dict[Way, Future[Launcher]]
) -> None:
    launcher = jobs_with_a_stopped_rank[way].result()
    errors = errors_after_fault(launcher)
    assert sorted(errors) == [0, 2], launcher.stderr
    assert re.search(r"rank 1 \(\S+:\d+\)", launcher.stderr), launcher.stderr


@pytest.mark.parametrize("way", [NCCL, STAGED], ids=["nccl", "staged"])
def test_a_device_that_fails_is_named(way: Way) -> None:
    launcher = run_faulty("device", way)
    errors = errors_after_fault(launcher)
    assert sorted(errors) == [0, 1, 2], launcher.stderr
    for elapsed_s, text in errors.values():
        assert elapsed_s < 2.0
        assert "cuda:1" in text, text
