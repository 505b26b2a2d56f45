"""The stream of a job with a real store; the ranks are simulated."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from horovod._job.job import open_job
from horovod._job.membership import Worker, assign_places
from horovod._rendezvous.observed import Observed, observed_key
from horovod.runner.observation.client import StreamClient
from horovod.runner.observation.records import JobView
from horovod.runner.observation.stream import JobStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._job.job import LocalJob

WORKERS = [Worker(f"a:{number}", "a", number) for number in range(2)]


@contextmanager
def streamed() -> Iterator[tuple[LocalJob, JobStream]]:
    with open_job() as job:
        job.publish(assign_places(None, WORKERS, 0))
        stream = JobStream(job, ["train.py"])
        with stream.using():
            yield job, stream


def views_of(client: StreamClient) -> Iterator[JobView]:
    for message in client.messages():
        assert message.pop("type") == "view"
        yield JobView.from_data(message)


def test_what_ranks_told_earlier_viewers_does_not_count() -> None:
    with streamed() as (job, stream):
        for rank in range(2):
            job.server.set(observed_key(0, rank), Observed(1.0, submitted=5).to_json())
        client = StreamClient(stream.key)
        view = next(views_of(client))
        assert [rank.length_s for rank in view.ranks] == [0.0, 0.0]
        for rank in range(2):
            assert not job.server.wait_all([observed_key(0, rank)], 0.0)
        client.close()


def test_what_ranks_told_in_a_generation_goes_with_it() -> None:
    with streamed() as (job, stream):
        client = StreamClient(stream.key)
        views = views_of(client)
        next(views)
        job.server.set(observed_key(0, 1), Observed(1.0, submitted=5).to_json())
        job.publish(assign_places(job.membership, WORKERS, 1))
        next(view for view in views if view.generation == 1)
        assert not job.server.wait_all([observed_key(0, 1)], 0.0)
        client.close()


def test_a_failed_rank_is_no_stall_and_its_successor_has_not_failed() -> None:
    with streamed() as (job, stream):
        stream.news.rank_ended(1, 9, "rank 1 was killed")
        client = StreamClient(stream.key)
        views = views_of(client)
        next(views)
        for number in range(5):
            for rank, now in enumerate(["wait", "backward"]):
                told = Observed(1.0 + 20.0 * number, submitted=5, now=now)
                job.server.set(observed_key(0, rank), told.to_json())
            view = next(views)
            assert view.ranks[1].state == "failed"
            assert view.verdicts[0].kind != "stall"
        stream.news.begin_generation()
        view = next(view for view in views if view.ranks[1].state != "failed")
        assert view.verdicts[0].kind == "stall"
        client.close()


def test_news_after_the_end_are_written_to_no_other_file() -> None:
    with streamed() as (_, stream):
        pass
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]
    try:
        stream.news.add("launcher", "late")
        for other in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(other)
    finally:
        for other in others:
            os.close(other)
