"""Threads that bring news to the loop of an elastic job."""

from __future__ import annotations

import json
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from led_job import await_workers, begin_generation

from horovod._job import Assignment, Worker
from horovod._job.elastic_worker import ElasticWorker
from horovod._job.job import Job, open_job
from horovod._job.records import EVENTS, Event, EventKind, alive_key
from horovod.runner.placing.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.runner.supervision import sources
from horovod.runner.supervision.events import (
    DiscoveryFailed,
    HostsDiscovered,
    WorkerSaid,
    WorkerSilent,
)
from horovod.runner.supervision.news import News
from horovod.runner.supervision.sources import ask, asking, hearing, listening

if TYPE_CHECKING:
    from horovod.runner.supervision import events

PATIENCE_S = 60.0
SILENCE_S = 2.0  # a worker that lives must not be silent for so long


def awaited(news: News, count: int) -> list[events.Event]:
    """The next events, for which the descriptor tells when to look."""
    found: list[events.Event] = []
    while len(found) < count:
        assert select.select([news], [], [], PATIENCE_S)[0]
        found += news.take()
    return found


class Same(HostDiscovery):
    """Changes what it has returned before; fails now and then."""

    def __init__(self, *errors: int) -> None:
        self.hosts: dict[str, int] = {}
        self.errors = errors
        self.asked = 0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        self.asked += 1
        if self.asked in self.errors:
            raise KeyError
        self.hosts[f"host-{self.asked}"] = self.asked
        return self.hosts


def test_changes_of_the_same_dictionary_are_seen() -> None:
    news = News()
    with asking(Same(), news, interval_s=0.0):
        first, second = awaited(news, 2)[:2]
    assert isinstance(first, HostsDiscovered)
    assert isinstance(second, HostsDiscovered)
    assert first.hosts == (("host-1", 1),)
    assert second.hosts == (("host-1", 1), ("host-2", 2))
    news.close()


def test_only_a_failure_before_any_answer_is_the_first() -> None:
    news = News()
    with asking(Same(1, 3), news, interval_s=0.0):
        found = awaited(news, 3)[:3]
    assert [isinstance(each, DiscoveryFailed) and each.first for each in found] == [1, 0, 0]
    assert isinstance(found[2], DiscoveryFailed)
    assert found[2].message == "KeyError"
    news.close()


def test_the_end_does_not_wait_for_a_script_that_hangs() -> None:
    news = News()
    began_s = time.monotonic()
    with asking(HostDiscoveryScript("sleep 4321", None), news):
        pass
    assert time.monotonic() - began_s < 60
    assert not list(news.take())
    news.close()


def test_a_script_that_hangs_is_ended() -> None:
    event = ask(HostDiscoveryScript("sleep 4321 & sleep 4321", None, 0.2), has_answered=True)
    assert isinstance(event, DiscoveryFailed)
    assert "did not end within 0.2 s" in event.message
    assert not event.first


def test_what_workers_tell_arrives() -> None:
    news = News()
    worker = Worker("a-0", "a", 0)
    with open_job() as job, listening(Job(job.server, job.where), news):
        records = [Event(kind, worker, "why", 3, 0.25, 64) for kind in EventKind]
        for record in records:
            job.store.append(EVENTS, record.to_json())
        said = awaited(news, len(records))
        job.close()
    assert [event.record for event in said if isinstance(event, WorkerSaid)] == records
    news.close()


@pytest.mark.parametrize("is_dismissed", [False, True])
def test_a_worker_that_is_silent_is_told_while_another_lives(
    is_dismissed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    def key_of(identity: str) -> str:
        if identity == "a-silent":
            looked.set()
        return alive_key(identity)

    monkeypatch.setattr(sources, "alive_key", key_of)
    news = News()
    with open_job() as job, hearing(job, news, SILENCE_S):
        told = Assignment(job.where, hostname="a", elastic=True, worker_timeout_s=SILENCE_S)
        alive = ElasticWorker(told)
        with ThreadPoolExecutor(1) as threads:
            place = threads.submit(alive.await_place)
            await_workers(job, lambda job: len(job.available) == 1, PATIENCE_S)
            stopped = Worker("a-silent", "a", 1)
            begin_generation(job, [*job.available.values(), stopped])
            place.result(PATIENCE_S)
            assert looked.wait(PATIENCE_S)
            if is_dismissed:
                begin_generation(job, list(job.available.values()))
        (silent,) = awaited(news, 1)
        alive.leave("")
    assert isinstance(silent, WorkerSilent)
    assert silent.identity == "a-silent"
    assert silent.silent_s >= SILENCE_S
    news.close()


def test_a_word_that_makes_no_sense_does_not_deafen_the_job() -> None:
    news = News()
    with closing(news), open_job() as job, listening(Job(job.server, job.where), news):
        worker = {"identity": "a-0", "host": "a", "slot": 0}
        good = {"worker": worker, "kind": "reset", "text": ""}
        for word in ("x", [], {"worker": worker, "kind": "reset"}, good | {"worker": 3}):
            job.store.append(EVENTS, json.dumps(word).encode())
        for more in ({"generation": 10**12}, {"stood_s": 1e300}, {"replayed": -1}, {"kind": "?"}):
            job.store.append(EVENTS, json.dumps(good | more).encode())
        said = Event(EventKind.RESET, Worker("a-0", "a"), "first\nsecond" + "x" * 100_000, 0)
        job.store.append(EVENTS, said.to_json())
        (event,) = awaited(news, 1)
        job.close()
    assert isinstance(event, WorkerSaid)
    assert event.record.text.startswith("first second")
    assert len(event.record.text) == 500


@pytest.mark.parametrize("slots", [10**12, 65_537])
def test_discovery_that_names_absurdly_many_slots_fails(slots: int) -> None:
    event = ask(FixedHosts({"a": slots}), has_answered=True)
    assert isinstance(event, DiscoveryFailed)
    assert event.message.endswith("slots, more than 65536")


def test_discovery_that_names_what_cannot_be_a_host_fails() -> None:
    event = ask(FixedHosts({"a\nb": 1}), has_answered=True)
    assert isinstance(event, DiscoveryFailed)
    assert event.message.startswith("'a\\nb' is not a valid host name")


def test_discovery_is_quoted_in_one_short_line() -> None:
    event = ask(HostDiscoveryScript("head -c 10000000 /dev/zero | tr '\\0' ,", 1), False)
    assert isinstance(event, DiscoveryFailed)
    assert len(event.message) <= 500
    assert event.message.count(",") < 200
