"""A rank that gets its place as an argument, or from an executor around it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from led_job import await_workers, begin_generation

from horovod._job import Assignment, Place, assigned
from horovod._job.job import open_job
from horovod._job.worker import join
from horovod._rank import context
from horovod._rank.context import Context
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from horovod._job import StoreAddress

TIMEOUT_S = 60.0


def train() -> tuple[int, int, int, int]:
    """What a script does that knows nothing of assignments."""
    context.init()
    try:
        return context.rank(), context.size(), context.local_rank(), context.cross_rank()
    finally:
        context.shutdown()


def test_executors_make_ranks_of_threads() -> None:
    def executor(store: StoreAddress, host: str, slot: int) -> tuple[int, int, int, int]:
        with (
            join(store, host, slot) as worker,
            Context().use(),
            assigned(worker.await_place(timeout_s=TIMEOUT_S)),
        ):
            train()
            return train()  # a second time in the same generation

    with open_job() as job, ThreadPoolExecutor(3) as threads:
        ranks = [
            threads.submit(executor, job.where, *seat) for seat in (("b", 1), ("a", 0), ("b", 0))
        ]
        await_workers(job, lambda job: len(job.available) == 3, TIMEOUT_S)
        begin_generation(job, sorted(job.available.values(), key=lambda w: (w.host, w.slot)))
        found = [rank.result(TIMEOUT_S) for rank in ranks]
    assert found == [(2, 3, 1, 0), (0, 3, 0, 0), (1, 3, 0, 1)]


def test_an_argument_is_stronger_than_what_is_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_HOSTNAME", "from-the-environment")
    with Context().use(), assigned(Assignment(place=Place(), hostname="around")):
        for given, hostname in ((Assignment(place=Place(), hostname="given"), "given"),
                                (None, "around")):  # fmt: skip
            context.init(job=given)
            assert context.settings().hostname == hostname
            context.shutdown()
    with Context().use():
        context.init()
        assert context.settings().hostname == "from-the-environment"
        context.shutdown()


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        (Assignment(identity="a-0"), "worker a-0 was told no place"),
        (Assignment(place=Place(1, 2)), "rank 1 of 2 in generation 0 was not told where the store"),
    ],
)
def test_half_an_assignment(assignment: Assignment, words: str) -> None:
    with Context().use(), pytest.raises(UsageError, match=words):
        context.init(job=assignment)


def test_a_worker_without_a_place_is_no_job_of_one_rank() -> None:
    with pytest.raises(StartError, match="worker a-0 was told no place"):
        Config.from_env({"HOROVOD_WORKER_ID": "a-0"})


def test_a_generation_that_is_over_ends_the_wait_of_its_ranks() -> None:
    with (
        open_job() as job,
        ThreadPoolExecutor(1) as threads,
        join(job.where, "a", 0) as early,
        join(job.where, "a", 1) as late,
    ):
        await_workers(job, lambda job: len(job.available) == 2, TIMEOUT_S)
        begin_generation(job, [early.worker, late.worker])

        def start() -> None:
            with Context().use():
                context.init(job=early.await_place(timeout_s=TIMEOUT_S))

        starting = threads.submit(start)
        # It has told the others about itself, and waits for them.
        job.store.wait_all(["peers/0.1/rank/0"], TIMEOUT_S)
        begin_generation(job, [early.worker])
        with pytest.raises(StartError, match="generation 1 of the job has replaced"):
            starting.result(TIMEOUT_S / 2)
