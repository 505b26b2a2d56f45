"""Elastic training with real processes of PyTorch, driven by a job without any launcher."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import elastic_worker
import process_fleet
import pytest
from led_job import await_workers
from process_fleet import PATIENCE_S, Fleet, Process, opened_fleet

from horovod._job.records import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

# Forks processes that have imported everything, which takes a newcomer most of its time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["horovod.torch", "torch._dynamo"])

STATE = pytest.mark.parametrize("shard_state", [False, True], ids=["whole", "shares"])


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with opened_fleet(PROCESSES, elastic_worker.main) as fleet:
        yield fleet


def begun(workers: list[Process], synced: bool = True) -> list[dict[str, Any]]:
    """What workers tell at the beginning of their next generation, after checks.

    Args:
        workers: all of it.
        synced: whether somebody needed the state. Statistics of batches are those of a rank.
    """
    fields = ("digest", "rate", "log", *(("buffers",) if synced else ()))
    reports = process_fleet.begun(workers, fields)
    for report in reports:
        assert report["total"] == len(workers)
        assert report["told"] == [str(report["rank"]), str(report["size"])]
        assert report["limits"] == (2, 4)
        assert report["log"] == report["begins"]
    return reports


def trained(workers: list[Process]) -> None:
    """Waits until some steps are done in the first generation."""
    assert begun(workers)[0]["begins"] == 0
    for worker in workers:
        worker.told("trained")


def ended(workers: list[Process]) -> None:
    """All come to the same end."""
    reports = [each.told("ends") for each in workers]
    assert len({(each["ends"], each["digest"]) for each in reports}) == 1
    assert all(each["same"] for each in reports)
    for worker in workers:
        worker.ends(0)


@STATE
def test_a_killed_worker_costs_the_steps_since_the_commit(
    fleet: Fleet, record_property: Any, shard_state: bool
) -> None:
    workers = fleet.start(*[{"until": 1, "shard_state": shard_state}] * 3)
    fleet.begin(workers)
    trained(workers)
    lost, survivors = workers[0], workers[1:]
    killed_at_s = time.monotonic()
    os.kill(lost.pid, signal.SIGKILL)
    fleet.await_event(EventKind.GONE, lost)
    fleet.begin(survivors)
    reports = begun(survivors)
    assert reports[0]["begins"] > 2
    seconds = max(report["at_s"] for report in reports) - killed_at_s
    record_property("seconds from the signal to the next allreduce", seconds)
    print(f"{seconds:.3f} s from the signal to the end of the next allreduce")
    ended(survivors)


@STATE
def test_a_newcomer_gets_what_the_others_have_reached(fleet: Fleet, shard_state: bool) -> None:
    plan = {"until": 1, "commits": False, "shard_state": shard_state}
    workers = fleet.start(plan, plan)
    fleet.begin(workers)
    trained(workers)
    (newcomer,) = fleet.start(plan)
    # It has made its model and optimizer, and the others do not even know that it is there.
    made = newcomer.told("made")
    assert (made["rank"], made["size"], made["generation"]) == (2, 3, 0)
    assert newcomer.identity not in fleet.job.available
    fleet.begin([*workers, newcomer])
    assert begun([*workers, newcomer])[0]["begins"] > 0
    ended([*workers, newcomer])


@STATE
def test_a_worker_that_is_removed_ends_and_costs_nothing(fleet: Fleet, shard_state: bool) -> None:
    plan = {"until": 1, "commits": False, "shard_state": shard_state}
    workers = fleet.start(plan, plan, plan)
    fleet.begin(workers)
    trained(workers)
    fleet.begin(workers[:2])
    fleet.job.dismiss(workers[2].identity, "its host is no longer listed")
    assert begun(workers[:2], synced=False)[0]["begins"] > 0
    workers[2].ends(0)
    ended(workers[:2])


@STATE
def test_a_worker_leaves_after_sigterm(fleet: Fleet, shard_state: bool) -> None:
    plan = {"until": 1, "commits": False, "shard_state": shard_state}
    workers = fleet.start(plan, plan, plan)
    fleet.begin(workers)
    trained(workers)
    os.kill(workers[0].pid, signal.SIGTERM)
    fleet.await_event(EventKind.LEAVING, workers[0])
    fleet.await_event(EventKind.LEFT, workers[0])
    workers[0].ends(0)
    fleet.begin(workers[1:])
    assert begun(workers[1:], synced=False)[0]["begins"] > 0
    ended(workers[1:])


@pytest.mark.parametrize(
    ("place", "shard_state"), [("sync", False), ("callback", False), ("sync", True)]
)
def test_a_loss_during_a_change_is_one_more_change(
    fleet: Fleet, place: str, shard_state: bool
) -> None:
    plan = {"until": 2, "shard_state": shard_state}
    workers = fleet.start({**plan, "dies": [place, 1]}, plan, plan)
    fleet.begin(workers)
    trained(workers)
    newcomer = fleet.start(plan)[0]
    fleet.begin([*workers, newcomer])
    fleet.await_event(EventKind.GONE, workers[0])
    remaining = [*workers[1:], newcomer]
    fleet.begin(remaining)
    assert begun(remaining)[0]["begins"] > 0
    ended(remaining)


def test_a_member_that_never_connects_is_one_more_change(fleet: Fleet) -> None:
    workers = fleet.start(*[{"until": 2}] * 2)
    fleet.begin(workers)
    trained(workers)
    newcomer = fleet.start({"until": 2})[0]
    await_workers(fleet.job, lambda job: newcomer.identity in job.available, PATIENCE_S)
    os.kill(newcomer.pid, signal.SIGSTOP)  # so that it takes no part before it dies
    fleet.begin([*workers, newcomer])
    os.kill(newcomer.pid, signal.SIGKILL)
    fleet.await_event(EventKind.GONE, newcomer)
    fleet.begin(workers)
    assert begun(workers, synced=False)[0]["generation"] == 2
    ended(workers)
