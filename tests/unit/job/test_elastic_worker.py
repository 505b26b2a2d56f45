"""A worker that follows its job from generation to generation."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest
from led_job import await_workers, begin_generation

from horovod._job import Assignment, Place, StoreAddress
from horovod._job.assigned import elastic_assignment, elastic_environment
from horovod._job.elastic_worker import ElasticWorker
from horovod._job.job import Job, open_job
from horovod._job.records import Event, EventKind
from horovod._job.worker import Dismissed
from horovod._rendezvous.secret import write_secret
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60.0


@pytest.fixture
def job() -> Iterator[Job]:
    with open_job() as job:
        yield job


def worker_of(job: Job, slot: int = 0, timeout_s: float = PATIENCE_S) -> ElasticWorker:
    return ElasticWorker(
        Assignment(
            job.where, hostname="a", slot=slot, elastic=True, min_size=1, max_size=4,
            elastic_timeout_s=timeout_s,
        )
    )  # fmt: skip


def began(job: Job, *workers: ElasticWorker) -> list[Assignment]:
    """The places of workers in a new generation."""
    with ThreadPoolExecutor(len(workers)) as threads:
        waiting = [threads.submit(worker.await_place) for worker in workers]
        await_workers(
            job, lambda job: {each.identity for each in workers} <= set(job.available), PATIENCE_S
        )
        begin_generation(job, [job.available[each.identity] for each in workers])
        return [each.result() for each in waiting]


def event_of(job: Job) -> Event:
    event = job.next_event(PATIENCE_S)
    assert event is not None
    return event


def test_a_newcomer_is_one_more_rank_until_it_is_ready(job: Job) -> None:
    first = worker_of(job, slot=0)
    assert first.provisional() is None  # there is nothing to come to
    (told,) = began(job, first)
    assert told.place == Place(0, 1, 0, 1, 0, 1, 0)
    late = worker_of(job, slot=2)
    provisional = late.provisional()
    assert provisional is not None
    # Its local rank is that of its slot, and its sizes are such that this makes sense.
    assert provisional.place == Place(1, 3, 2, 3, 0, 1, 0)
    assert (provisional.identity, provisional.max_size) == (late.identity, 4)
    assert job.next_event(0.05) is None  # it has not said that it is ready
    first.expect_change()
    places = began(job, first, late)
    assert [told.place and told.place.rank for told in places] == [0, 1]
    assert (first.generation, late.generation, late.newest) == (1, 1, 1)
    for worker in (first, late):
        worker.leave("")


def test_the_same_place_counts_until_a_change_is_expected(job: Job) -> None:
    worker = worker_of(job, timeout_s=0.05)
    with pytest.raises(StartError, match=r"got no place after generation -1 within 0\.05 s"):
        worker.await_place()
    assert event_of(job).kind is EventKind.READY
    begin_generation(job)
    assert worker.await_place() == worker.await_place()
    worker.expect_change()
    with pytest.raises(StartError, match="got no place after generation 0"):
        worker.await_place()
    worker.fail("rank 1 was lost")
    assert event_of(job) == Event(
        EventKind.RESET, job.available[worker.identity], "rank 1 was lost", 0
    )
    begin_generation(job)
    assert worker.await_place().place == Place(generation=1)
    worker.leave("")


def test_a_newcomer_whose_place_came_to_nothing_waits_as_long_as_the_others(job: Job) -> None:
    first = worker_of(job, 0)
    began(job, first)
    first.runs()
    new = worker_of(job, 1, timeout_s=0.05)
    new._joined.ready()
    await_workers(job, lambda job: len(job.available) == 2, PATIENCE_S)
    begin_generation(job)
    assert new.await_place().place == Place(1, 2, 1, 2, 0, 1, 1)
    job.break_up("rank 0 has ended")
    new.await_others(1)  # nobody comes
    new.fail("rank 0 has ended")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(new.await_place)
        assert not wait([waiting], 0.3).done  # several times as long as its elastic timeout
        job.dismiss(new.identity, "rank 0 ended")
        with pytest.raises(Dismissed):
            waiting.result(PATIENCE_S)
    for worker in (first, new):
        worker.leave("")


def test_who_is_new_is_known_from_the_record(job: Job) -> None:
    a, b = worker_of(job, 0), worker_of(job, 1)
    began(job, a, b)
    c = worker_of(job, 2)
    c._joined.ready()
    await_workers(job, lambda job: len(job.available) == 3, PATIENCE_S)
    everybody = list(job.available.values())
    begin_generation(job, everybody[:1])
    assert not a.has_newcomers(1)
    begin_generation(job, everybody)
    assert a.has_newcomers(2)
    assert a.has_newcomers(1)  # replaced: nobody knows any more
    for worker in (a, b, c):
        worker.leave("")


def test_a_dismissed_worker_ends_in_peace(job: Job) -> None:
    a, b = worker_of(job, 0), worker_of(job, 1)
    began(job, a, b)
    begin_generation(job, [job.available[a.identity]])
    b.expect_change()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(b.await_place)
        job.dismiss(b.identity, "its host is no longer listed")
        error = waiting.exception(PATIENCE_S)
    assert isinstance(error, Dismissed)
    assert (error.code, str(error)) == (0, "its host is no longer listed")
    assert list(job.available) == [a.identity]
    for worker in (a, b):
        worker.leave("")


def test_a_worker_that_wants_to_leave_is_left_out(job: Job) -> None:
    worker = worker_of(job)
    began(job, worker)
    worker.leave_soon("SIGTERM")
    event = event_of(job)
    assert (event.kind, event.text) == (EventKind.LEAVING, "SIGTERM")
    assert not job.available
    with pytest.raises(Dismissed):
        worker.await_place()
    assert event_of(job).kind is EventKind.LEFT


def test_leaving_ends_a_wait(job: Job) -> None:
    worker = worker_of(job)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(worker.await_place)
        assert event_of(job).kind is EventKind.READY  # so it waits, or is about to
        worker.leave_soon("SIGTERM")
        assert isinstance(waiting.exception(PATIENCE_S), Dismissed)


def test_variables_carry_all_that_an_elastic_worker_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Assignment(
        StoreAddress("127.0.0.1", 4000, bytes(32)), None, "a-7", "a", start_timeout_s=4.0,
        slot=3, elastic=True, min_size=2, max_size=8, elastic_timeout_s=20.0,
    )  # fmt: skip
    variables = told.variables()
    assert variables["HOROVOD_ELASTIC"] == "1"
    assert Assignment.from_variables(variables) == told
    assert "HOROVOD_MAX_SIZE" not in Assignment(elastic=True).variables()
    assert not Assignment(hostname="a", slot=3).variables().keys() & {"HOROVOD_WORKER_SLOT"}
    for name in list(os.environ):
        if name.startswith("HOROVOD_"):
            monkeypatch.delenv(name)
    assert elastic_environment() is None
    # What an earlier place left there is not asked.
    for name, value in {**variables, "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert elastic_environment() == told
    assert elastic_assignment(told) is told
    assert elastic_assignment(Assignment(place=Place())) is None


def test_the_secret_may_be_in_a_file(job: Job, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    where = StoreAddress(job.where.address, job.where.port)
    file = write_secret(tmp_path, job.where.secret)
    told = Assignment(where, hostname="a", secret_file=file, elastic=True)
    worker = ElasticWorker(told)
    (place,) = began(job, worker)
    assert place.secret_file == file
    worker.leave("")


def test_who_runs_tells_for_how_long_it_did_not(job: Job) -> None:
    worker = worker_of(job)
    began(job, worker)
    worker.runs()
    event = event_of(job)
    assert (event.kind, event.generation, event.stood_s) == (EventKind.RUNNING, 0, 0.0)
    assert worker.identity in job.available
    worker.expect_change()
    began(job, worker)
    worker.runs()
    event = event_of(job)
    assert (event.kind, event.generation) == (EventKind.RUNNING, 1)
    assert 0 < event.stood_s < PATIENCE_S
    worker.leave("")
