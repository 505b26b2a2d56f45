"""Elastic training with real processes of TensorFlow, driven by a job without any launcher."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from led_job import await_workers
from process_fleet import PATIENCE_S, Fleet, Process, begun, opened_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

# Forks processes that have imported everything, which takes most of their time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["keras", "horovod.tensorflow.keras"])


def work(environ: dict[str, str], mode: str, pipe: Any) -> None:
    """The whole process; this one itself needs no TensorFlow."""
    import tensorflow_elastic_samples
    import tensorflow_elastic_worker

    what, _, mode = mode.partition(": ")
    worker = tensorflow_elastic_samples if what == "samples" else tensorflow_elastic_worker
    worker.main(environ, mode, pipe)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with opened_fleet(PROCESSES, work) as fleet:
        yield fleet


def begin(fleet: Fleet, workers: list[Process]) -> dict[str, Any]:
    """Begins a generation with workers; returns what one of them tells."""
    fleet.begin(workers)
    return begun(workers, ["digest"])[0]


@pytest.mark.parametrize("mode", ["fit", "function", "session"])
def test_a_worker_is_killed_and_another_one_comes(fleet: Fleet, mode: str) -> None:
    mode = f"training: {mode}"
    first, *survivors = fleet.start(*[mode] * 3)
    assert begin(fleet, [first, *survivors])["begins"] == (0, 0)
    for each in survivors:
        each.told("trains")
    os.kill(first.pid, signal.SIGKILL)
    await_workers(fleet.job, lambda job: first.identity not in job.available, PATIENCE_S)
    after_loss = begin(fleet, survivors)
    assert after_loss["begins"] > (0, 0)
    for each in survivors:
        each.told("trains")
    workers = [*survivors, *fleet.start(mode)]
    # The state of the newcomer is that of the others to the bit.
    assert begin(fleet, workers)["begins"] > after_loss["begins"]
    ends = [each.told("ends") for each in workers]
    assert len({(each["ends"], each["digest"]) for each in ends}) == 1
    for process in workers:
        process.ends(0)


def test_a_rank_that_took_local_steps_alone_goes_on_with_another_one(fleet: Fleet) -> None:
    mode = "training: local 1"
    (first,) = fleet.start(mode)
    begin(fleet, [first])
    first.told("trains")  # its step is compiled, when there is nobody to exchange with
    workers = [first, *fleet.start(mode)]
    assert begin(fleet, workers)["begins"] > (0, 0)
    ends = [each.told("ends") for each in workers]
    assert len({(each["ends"], each["digest"]) for each in ends}) == 1
    for process in workers:
        process.ends(0)


@pytest.mark.parametrize("mode", ["fit", "function", "session"])
def test_a_worker_leaves_and_another_one_dies_in_a_reset_callback(fleet: Fleet, mode: str) -> None:
    mode = f"training: {mode} 3"
    leaving, stays = fleet.start(mode, mode)
    (dies,) = fleet.start(f"{mode} dies")
    begin(fleet, [leaving, stays, dies])
    for each in (leaving, stays, dies):
        each.told("trains")
    os.kill(leaving.pid, signal.SIGTERM)
    leaving.ends(0)
    after_leave = begin(fleet, [stays, dies])
    assert after_leave["begins"] > (0, 0)
    for each in (stays, dies):
        each.told("trains")
    (newcomer,) = fleet.start(mode)
    fleet.begin([stays, dies, newcomer])
    dies.process.join(PATIENCE_S)
    await_workers(fleet.job, lambda job: dies.identity not in job.available, PATIENCE_S)
    assert begin(fleet, [stays, newcomer])["begins"] > after_leave["begins"]
    ends = [each.told("ends") for each in (stays, newcomer)]
    assert ends[0]["digest"] == ends[1]["digest"]
    for process in (stays, newcomer):
        process.ends(0)


@pytest.mark.parametrize("mode", ["fit", "function"])
def test_a_mistake_of_the_program_is_no_reset(fleet: Fleet, mode: str) -> None:
    workers = fleet.start(*[f"training: {mode} wrong"] * 2)
    begin(fleet, workers)
    for each in workers:
        assert "wrong" in each.told("error")["error"]
        each.ends(3)


@pytest.mark.parametrize("style", ["loops", "fit"])
def test_each_sample_once_whoever_dies_and_comes(fleet: Fleet, style: str) -> None:
    style = f"samples: {style}"
    workers = fleet.start(style, f"{style} dies", style)
    fleet.begin(workers)
    dead = workers.pop(1)
    dead.process.join(PATIENCE_S)
    await_workers(fleet.job, lambda job: dead.identity not in job.available, PATIENCE_S)
    fleet.begin(workers)
    workers += fleet.start(style)
    for each in workers[:2]:
        assert each.told("waits")["waits"] == 1
    fleet.begin(workers)
    reports = [each.told("times") for each in workers]
    for report in reports:
        assert report["times"] == [3] * 96
        # The second epoch begins with 2 ranks and ends with 3, which stay.
        assert report["sizes"][-17:] == [2] * 3 + [3] * 6 + [3] * 8
    assert [each["traces"] for each in reports] == [1, 1, 1], "what is compiled was lost"
    for process in workers:
        process.ends(0)
