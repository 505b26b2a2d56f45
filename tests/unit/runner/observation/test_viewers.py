"""Viewers get the newest view, whoever is slow; nobody else gets in."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from typing import Any

import pytest

from horovod._rendezvous.observed import Command, Observed
from horovod.errors import StartError, UsageError
from horovod.runner.observation import door
from horovod.runner.observation.news import MOST_EVENTS, JobNews
from horovod.runner.observation.prometheus import exposition
from horovod.runner.observation.records import JobView, RankView, Verdict
from horovod.runner.observation.subscriber import Subscriber
from horovod.runner.observation.verdict_lines import VerdictLines

SLOW = Verdict("rank", "rank 1 is slow", "look at it", 1, "backward", 0.5)


def view_of(number: int, *verdicts: Verdict, said: str = "") -> JobView:
    ranks = tuple(RankView(rank, f"host-{rank}", "running", 1.0, said=said) for rank in range(2))
    return JobView(number, 0.0, "1", "train", 0.0, 0, ranks, verdicts or (SLOW,))


def test_a_slow_viewer_gets_the_newest_view_and_costs_no_more_than_two() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(30.0)
        subscriber = Subscriber(ours)
        for number in range(2000):
            line = json.dumps({"number": number, "filling": "x" * 1000}).encode() + b"\n"
            subscriber.show(line)
        kept = len(subscriber._under_way) + len(subscriber._newest)
        assert kept < 3000
        received = b""
        while subscriber.wants_to_write or not received.endswith(b"\n"):
            received += theirs.recv(1 << 16)
            subscriber.write()
        numbers = [json.loads(line)["number"] for line in received.splitlines()]
        assert numbers[-1] == 1999
        assert numbers == sorted(numbers)
        assert len(numbers) < 2000


@pytest.mark.parametrize("nonsense", [b"{\n", b"x" * 10_000, b"[" * 3000 + b"\n"])
def test_a_viewer_that_talks_nonsense_is_let_go(nonsense: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subscriber = Subscriber(ours)
        theirs.sendall(nonsense)
        for _ in range(5):
            if subscriber.is_open:
                assert subscriber.read() == []
        assert not subscriber.is_open


def test_jobs_are_found_by_process_and_number() -> None:
    first, first_key = door.open_door()
    second, second_key = door.open_door()
    with first, second:
        assert first_key.split(".")[0] == str(os.getpid())
        assert {first_key, second_key} <= set(door.running_jobs())
        sock, key = door.connect(second_key)
        with sock:
            assert key == second_key
            assert door.is_of_this_user(sock)
        with pytest.raises(UsageError, match="say which job: "):
            door.connect()
    with pytest.raises(UsageError, match=f"there is no job {second_key} of this user"):
        door.connect(second_key)


def test_warnings_of_ranks_are_events_and_one_of_many_is_enough() -> None:
    woken: list[int] = []
    news = JobNews(lambda: woken.append(1))
    text = b"[Thu horovod warning] Operations have waited for up to 2 s\n  more\n"
    for rank in range(4):
        news.take_output(rank, b"step 1\n" + text)
    (event,) = news.events()
    assert (event.kind, event.rank) == ("warning", 0)
    assert event.text == "Operations have waited for up to 2 s"
    assert (len(woken), news.last_line_of(3)) == (1, "more")
    for number in range(2 * MOST_EVENTS):
        news.add("launcher", str(number))
        news.take_output(0, b"y" * 1000)
    assert (len(news.events()), len(news.output_of(0))) == (MOST_EVENTS, 8192)


def test_reports_and_commands_survive_the_store_and_nonsense_is_refused() -> None:
    report = Observed(1.0, 0.5, 7, samples={"input": 3}, places={"input": "a.py:1 in f"})
    read = Observed.from_json(report.to_json())
    assert (read.at_s, read.submitted, read.samples["input"]) == (1.0, 7, 3)
    assert read.places["input"] == "a.py:1 in f"
    command = Command(3, "trace", 10)
    assert Command.from_json(command.to_json()) == command
    for nonsense in (b"", b"[]", b"{}", report.to_json().replace(b"0.5", b"-1"), b"\xff"):
        with pytest.raises(StartError):
            Observed.from_json(nonsense)


def test_views_survive_json() -> None:
    view = view_of(3, said="é")
    data: dict[str, Any] = json.loads(json.dumps(view.to_data()))
    assert JobView.from_data(data) == view


def test_prometheus_names_rank_and_phase_and_escapes() -> None:
    view = view_of(1)
    lines = exposition(view).splitlines()
    assert 'horovod_job_verdict{job="1",kind="rank",rank="1",phase="backward"} 0.5' in lines
    assert 'horovod_rank_up{job="1",rank="1",host="host-1"} 1' in lines
    many = replace(view_of(1), ranks=(RankView(0, "a", steps=1_234_567),), logged={"x": 0.12345678})
    assert 'horovod_rank_steps_total{job="1",rank="0",host="a"} 1234567\n' in exposition(many)
    assert 'horovod_job_logged{job="1",name="x"} 0.12345678\n' in exposition(many)
    odd = Verdict("rank", "", phase='a"b\\c\nd')
    assert r'phase="a\"b\\c\nd"' in exposition(view_of(1, odd))
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert names <= typed


def test_verdicts_are_printed_once_they_are_steady_and_summed_up() -> None:
    said: list[str] = []
    lines = VerdictLines(said.append)
    healthy = Verdict("healthy", "all is well")
    for number, verdict in enumerate([SLOW, healthy, SLOW, SLOW, SLOW, SLOW]):
        lines.take(view_of(number, verdict))
    assert said == ["rank 1 is slow; look at it"]
    lines.sum_up()
    assert said[1:] == ["in 83 % of the time watched: rank 1 is slow; look at it"]


def test_a_line_that_was_seen_is_named_although_later_views_missed_it() -> None:
    said: list[str] = []
    lines = VerdictLines(said.append)
    seen = replace(SLOW, text="rank 1 is slow (train.py:7)", place="train.py:7")
    newer = replace(seen, text="rank 1 is slow (train.py:8)", place="train.py:8")
    for number, verdict in enumerate([SLOW, seen, SLOW, SLOW, newer, SLOW]):
        lines.take(view_of(number, verdict))
    lines.sum_up()
    assert said == [
        "rank 1 is slow (train.py:7); look at it",
        "in 100 % of the time watched: rank 1 is slow (train.py:8); look at it",
    ]
