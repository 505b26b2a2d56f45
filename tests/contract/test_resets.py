"""The contract after resets, and what 200 of them leave behind, for horovod.torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import CHECKS
from led_job import await_workers, begin_generation

from horovod._job.job import open_job
from horovod._job.python_path import with_horovod_on_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from horovod._job.job import Job

_RANK = Path(__file__).parent / "reset_rank.py"
_PATIENCE_S = 120.0
# `HVD_TEST_ALL_AFTER_RESETS=1` runs the whole contract, which costs a few times as much.
_ALL = bool(os.environ.get("HVD_TEST_ALL_AFTER_RESETS"))
_MODULES = ["joining", "process_sets", "weights"]
if _ALL:
    _MODULES = sorted({check.__module__ for check in CHECKS})


@contextmanager
def _started(job: Job, number: int, told: dict[str, Any]) -> Iterator[list[subprocess.Popen[str]]]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    # A rank that waits in vain ends the test with a report.
    environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "60"
    store = {"address": job.where.address, "port": job.where.port, "secret": job.where.secret.hex()}
    processes: list[subprocess.Popen[str]] = []
    try:
        for slot in range(number):
            process = subprocess.Popen(
                [sys.executable, str(_RANK), str(slot)],
                env=with_horovod_on_path(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps({**told, **store}) + "\n")
            process.stdin.flush()
        await_workers(job, lambda job: len(job.available) == number, _PATIENCE_S)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _generations(
    sizes: Sequence[int],
    checked: Collection[int] = (),
    modules: Collection[str] = (),
    counted: Collection[int] = (),
) -> list[list[dict[str, Any]]]:
    """What the workers of each generation told; who takes part changes as well as how many."""
    told = {"checked": list(checked), "modules": list(modules), "counted": list(counted)}
    number = max(sizes)
    reports = []
    with open_job() as job, _started(job, number, told) as processes:
        workers = sorted(job.available.values(), key=lambda worker: worker.slot)
        for generation, size in enumerate(sizes):
            slots = [(generation + place) % number for place in range(size)]
            begin_generation(job, [workers[slot] for slot in slots])
            lines = [processes[slot].stdout.readline() for slot in slots]  # type: ignore[union-attr]
            assert all(lines), "a rank has failed; it says why on standard error"
            reports.append([json.loads(line) for line in lines])
            assert {(each["generation"], each["size"]) for each in reports[-1]} == {
                (generation, size)
            }
        for worker in workers:
            job.dismiss(worker.identity, "the test is over")
        assert [process.wait(_PATIENCE_S) for process in processes] == [0] * number
    return reports


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 1, 3), *([(3, 4, 2), (2, 3, 4)] if _ALL else [])], ids=str)
def test_contract_in_the_third_generation(sizes: tuple[int, ...]) -> None:
    reports = _generations(sizes, checked=[2], modules=_MODULES)
    names = [check.__name__ for check in CHECKS if check.__module__ in _MODULES]
    assert len(names) > 20
    assert [each["checks"] for each in reports[2]] == [names] * sizes[2]


@pytest.mark.slow
def test_200_resets_leave_nothing_behind() -> None:
    # Of three workers all are in each of the generations that are compared.
    sizes = [3 if generation % 2 else 2 for generation in range(202)]
    reports = _generations(sizes, counted=[41, 201])
    for early, late in zip(
        sorted(each["counts"]["descriptors"] for each in reports[41]),
        sorted(each["counts"]["descriptors"] for each in reports[201]),
        strict=True,
    ):
        assert late == early
    assert {each["counts"]["threads"] for each in reports[201]} == {
        each["counts"]["threads"] for each in reports[41]
    }
    grown = [
        late["counts"]["kib"] - early["counts"]["kib"]
        for early, late in zip(
            sorted(reports[41], key=lambda each: each["counts"]["kib"]),
            sorted(reports[201], key=lambda each: each["counts"]["kib"]),
            strict=True,
        )
    ]
    # 160 resets; 100 KiB left behind in each would be as much.
    assert max(grown) < 16 * 1024, grown
