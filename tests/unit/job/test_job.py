"""A job and its workers over a real store: joining, places, changes, leaving, dying."""

from __future__ import annotations

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from led_job import await_workers, begin_generation

from horovod._job import Assignment, Place, StoreAddress, Worker
from horovod._job.job import Job, LocalJob, open_job
from horovod._job.records import EVENTS, EventKind, lost_key
from horovod._job.worker import JoinedWorker, join, join_as
from horovod._rendezvous import StoreClient
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0


@pytest.fixture
def job() -> Iterator[Job]:
    with open_job() as job:
        yield job


def joined(job: Job, *hosts: str) -> list[JoinedWorker]:
    """Workers that are ready, and of which the job has heard."""
    workers = [join(job.where, host, slot) for slot, host in enumerate(hosts)]
    await_workers(job, lambda job: {w.identity for w in workers} <= set(job.available), PATIENCE_S)
    return workers


def kept_by(job: Job, prefix: str) -> set[str]:
    """The keys that the store of a job holds."""
    assert isinstance(job, LocalJob)
    return {key for key in job.server._table._values if key.startswith(prefix)}


def test_a_loss_can_be_read_until_nobody_trains_where_it_came(job: Job) -> None:
    """Newer generations come and go while the others still train in the old one."""
    (worker,) = joined(job, "a")
    begin_generation(job)
    job.tell_loss(0, "b is lost")
    with StoreClient(job.where.address, job.where.port, job.where.secret) as store:
        for _ in range(3):
            begin_generation(job)
        assert store.try_get(lost_key(0)) == b"b is lost"
        job.tell_loss(3, "c is lost")
        assert store.try_get(lost_key(0)) is None
        assert store.try_get(lost_key(3)) == b"c is lost"
    worker.leave()


def test_events_that_were_read_are_not_kept(job: Job) -> None:
    """A job may have changes without end."""
    workers = joined(job, *"abcdefghijkl")
    for worker in workers[:1]:
        worker.leave("it has had enough")
    event = job.next_event(PATIENCE_S)
    assert event is not None
    assert event.kind is EventKind.LEFT
    kept = job.store.wait_all([f"{EVENTS}{number}" for number in range(20)], 0.0)
    assert kept == {}
    for worker in workers[1:]:
        worker.leave()
    for _ in workers[1:]:
        event = job.next_event(PATIENCE_S)
        assert event is not None


def test_little_is_kept_of_generations_and_workers_that_are_over(job: Job) -> None:
    """A job may have changes without end; only who was in it stays known."""
    (stays,) = joined(job, "a")
    heard: queue.Queue[int] = queue.Queue()
    stays.on_change(-1, heard.put, beat_s=0.05)

    def one_comes_and_goes() -> None:
        (goes,) = joined(job, "b")
        goes.on_change(job.next_generation - 1, lambda generation: None, beat_s=0.05)
        begin_generation(job)
        assert goes.await_place(-1, PATIENCE_S).place is not None
        job.dismiss(goes.identity, "enough")
        goes.leave()
        job.forget(goes.identity)
        begin_generation(job)

    for _ in range(20):
        one_comes_and_goes()
    assert kept_by(job, "job/alive/") == {f"job/alive/{stays.identity}"}
    assert kept_by(job, "job/dismissed/") == set()
    assert kept_by(job, "job/generation/") == {f"job/generation/{n}" for n in range(24, 40)}
    while heard.get(timeout=PATIENCE_S) < job.next_generation - 1:
        pass
    stays.leave()


def test_one_that_is_far_behind_finds_the_newest_generation(job: Job) -> None:
    """Those that it would look at next are deleted."""
    first, late = joined(job, "a", "a")
    heard: queue.Queue[int] = queue.Queue()
    for _ in range(40):
        begin_generation(job, [first.worker])
    begin_generation(job, [first.worker, late.worker])
    late.on_change(0, heard.put, beat_s=0.05)
    place = late.await_place(0, PATIENCE_S).place
    assert place is not None
    assert place.generation == heard.get(timeout=PATIENCE_S) == 40
    for worker in (first, late):
        worker.leave()


def test_generations_of_a_job(job: Job) -> None:
    a, b = joined(job, "a", "a")
    assert (a.identity, b.identity) == ("a-0", "a-1")
    begin_generation(job)
    assert a.await_place(timeout_s=PATIENCE_S) == Assignment(
        job.where, Place(0, 2, 0, 2, 0, 1, 0), "a-0", "a", start_timeout_s=30.0
    )
    with ThreadPoolExecutor(1) as threads:
        newcomer = join(job.where, "b")
        waiting = threads.submit(newcomer.await_place, -1, PATIENCE_S)
        await_workers(job, lambda job: len(job.available) == 3, PATIENCE_S)
        a.leave("it has had enough")
        event = job.next_event(PATIENCE_S)
        assert event is not None
        assert (event.kind, event.worker, event.text) == (
            EventKind.LEFT, a.worker, "it has had enough"
        )  # fmt: skip
        assert [m.reason for m in begin_generation(job).members] == [
            "comes from rank 1 to rank 0: nobody has been in the job for longer (generation 0)",
            "is new: takes rank 1, which was a-1's",
        ]
        assert waiting.result().place == Place(1, 2, 0, 1, 1, 2, 1)
        assert b.await_place(0, PATIENCE_S).place == Place(0, 2, 0, 1, 0, 2, 1)
    with pytest.raises(StartError, match="a-0 has left the job"):
        a.await_place()
    for worker in (b, newcomer):
        worker.leave()


def test_a_worker_that_comes_late_gets_the_newest_place(job: Job) -> None:
    first, late = joined(job, "a", "a")
    for number in (1, 2, 2):
        begin_generation(job, [first.worker, late.worker][:number])
    place = late.await_place(-1, PATIENCE_S).place
    assert place is not None
    assert place.generation == 2
    begin_generation(job, [first.worker])
    with pytest.raises(StartError, match=r"a-1 got no place after generation 2 within 0\.05 s"):
        late.await_place(2, 0.05)
    first.leave()
    late.leave()


def test_the_address_of_a_job_follows_the_store() -> None:
    with open_job("127.0.0.1", further_addresses=["127.0.0.2"]) as job:
        job.narrow(job.server.endpoints[1])
        assert job.where.address == "127.0.0.2"
        with join(job.where, "a") as worker:
            assert worker.identity == "a-0"


def test_changes_are_told(job: Job) -> None:
    (worker,) = joined(job, "a")
    heard: queue.Queue[int] = queue.Queue()
    begin_generation(job)
    worker.on_change(0, heard.put)
    for generation in (1, 2):
        begin_generation(job)
        assert heard.get(timeout=PATIENCE_S) == generation
    worker.leave()  # ends the thread
    assert heard.empty()


def test_an_identity_is_never_used_again(job: Job) -> None:
    first = join(job.where, "a", identity=job.new_identity("a"))
    with pytest.raises(StartError, match="took part as worker a-0 before"):
        join(job.where, "a", identity="a-0")
    first.leave()
    with pytest.raises(StartError, match="took part as worker a-0 before"):
        join(job.where, "a", identity="a-0")
    with join(job.where, "a") as second:
        assert second.identity == "a-1"


def test_the_end_of_a_process_is_told(job: Job) -> None:
    pid = os.fork()
    if pid == 0:  # the child is the worker: it dies without a word
        join(job.where, "a", identity="mortal")
        os._exit(7)
    os.waitpid(pid, 0)
    events = [job.next_event(PATIENCE_S) for _ in range(2)]
    assert [event and event.kind for event in events] == [EventKind.READY, EventKind.GONE]
    assert job.available == {}


def test_a_child_of_a_worker_does_not_keep_it_alive(job: Job) -> None:
    (worker,) = joined(job, "a")
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:  # lives on while its parent's connections end
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    worker._presence.close()  # as the kernel does at the parent's end
    event = job.next_event(PATIENCE_S)
    assert event is not None
    assert event.kind is EventKind.GONE
    os.close(write_end)
    os.close(read_end)
    os.waitpid(pid, 0)
    worker._close()


def test_what_a_worker_is_told_fits_into_an_environment() -> None:
    told = Assignment(
        StoreAddress("10.0.0.1", 4711, bytes(range(32))),
        Place(5, 8, 1, 4, 1, 2, 3),
        "node1-7",
        "node1",
        start_timeout_s=7.5,
        network_interface="eth0",
    )
    assert Assignment.from_variables(told.variables()) == told
    assert bytes(range(32)).hex() not in repr(told)
    assert Assignment().variables() == {}
    assert "HOROVOD_GENERATION" not in Assignment(place=Place()).variables()
    with pytest.raises(UsageError, match="tell it both"):
        join_as(Assignment())


def test_a_worker_asks_for_its_place_if_it_was_told_none(job: Job) -> None:
    identity = job.new_identity("a")
    variables = job.assignment(Worker(identity, "a")).variables()
    with join_as(Assignment.from_variables(variables)) as worker:
        await_workers(job, lambda job: list(job.available) == [identity], PATIENCE_S)
        begin_generation(job)
        assert worker.await_place(-1, PATIENCE_S).place == Place()
