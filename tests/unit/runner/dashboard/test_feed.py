"""What the page gets, and the table in a terminal."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from horovod.runner.dashboard.feed import MOST_CELLS, MOST_COLUMNS, Feed, column_of
from horovod.runner.dashboard.terminal import lines_of
from horovod.runner.observation.records import JobEvent, JobView, RankView, Verdict

KINDS = ["trace", "output"]


def view_of(number: int, size: int = 2) -> JobView:
    ranks = tuple(
        RankView(rank, "a", "running", 1.0, backward=0.25, wait=0.75, step_s=0.1 + 0.01 * rank)
        for rank in range(size)
    )
    verdicts = (Verdict("rank", "rank 1 is slow", "look at it", 1),)
    events = (JobEvent(0.0, "exit", "rank 0 has ended\nmore"),)
    return JobView(number, float(number), "7", "train.py", 0.0, 0, ranks, verdicts, events)


def message(number: int, size: int = 2) -> dict[str, Any]:
    return {"type": "view", **view_of(number, size).to_data()}


def test_viewers_begin_with_the_past_and_miss_what_they_are_too_slow_for() -> None:
    async def scene() -> None:
        feed = Feed(lambda request: None)
        for number in range(3):
            feed.take(message(number))
        quick, slow = feed.follow(), feed.follow()
        name, past = await anext(quick)
        assert (name, [column["at"] for column in past["columns"]]) == ("past", [0.0, 1.0, 2.0])
        await anext(slow)
        assert feed.num_viewers == 2
        assert (await anext(quick))[1]["number"] == 2
        assert (await anext(slow))[1]["number"] == 2
        for number in range(3, 50):
            feed.take(message(number))
            assert (await anext(quick))[1]["number"] == number
        assert (await anext(slow))[1]["number"] == 49
        feed.end()
        assert [event async for event in quick] == []
        assert [event async for event in slow] == []
        assert feed.num_viewers == 0

    asyncio.run(scene())


def test_the_past_is_bounded_and_begins_anew_with_other_ranks() -> None:
    feed = Feed(lambda request: None)
    for number in range(2 * MOST_COLUMNS):
        feed.take(message(number))
    assert len(feed._past) == MOST_COLUMNS
    for number in range(100):
        feed.take(message(number, size=1000))
    assert len(feed._past) == MOST_CELLS // 1000


def test_questions_wait_for_their_answer_and_no_longer() -> None:
    async def scene() -> None:
        asked: list[dict[str, Any]] = []
        feed = Feed(asked.append)
        answering = asyncio.ensure_future(feed.ask({"do": "stacks"}, 5.0))
        while not asked:
            await asyncio.sleep(0)
        feed.take({"type": "trace", "zlib": ""})
        feed.take({"type": "stacks", "ranks": {"0": "here"}})
        assert await answering == {"ranks": {"0": "here"}}
        assert "problem" in await feed.ask({"do": "trace"}, 0.01)

    asyncio.run(scene())


def test_columns_are_in_percent_and_milliseconds() -> None:
    column = column_of(view_of(1).to_data())
    assert column["ranks"] == [[0, 25, 0, 0, 75, 0]] * 2
    assert (column["least"], column["step"], column["memory"]) == (100.0, 110.0, None)


def test_browsers_get_values_that_are_not_finite_as_null() -> None:
    logged = {"loss": float("nan"), "norm": float("inf"), "accuracy": 0.5}

    async def scene() -> list[str]:
        feed = Feed(lambda request: None)
        feed.take({**message(1), "logged": logged})
        feed.end()
        return [json.dumps(data, allow_nan=False) async for _, data in feed.follow()]

    past, view = map(json.loads, asyncio.run(scene()))
    assert past["columns"][0]["logged"] == view["logged"] == view["column"]["logged"]
    assert view["logged"] == {"loss": None, "norm": None, "accuracy": 0.5}


def test_output_is_answered_while_a_trace_is_recorded() -> None:
    async def scene() -> None:
        asked: list[str] = []
        feed = Feed(lambda request: asked.append(request["do"]))
        questions = [asyncio.ensure_future(feed.ask({"do": kind}, 5.0)) for kind in KINDS]
        while len(asked) < len(KINDS):
            await asyncio.sleep(0)
        for kind in reversed(KINDS):
            feed.take({"type": kind, "text": kind})
        assert [(await each)["text"] for each in questions] == KINDS

    asyncio.run(asyncio.wait_for(scene(), 10.0))


def test_the_terminal_shows_verdict_ranks_and_events() -> None:
    lines = lines_of(view_of(1, 3))
    assert lines[:3] == [
        "job 7: 3 ranks run train.py",
        "> rank 1 is slow",
        "  what to do: look at it",
    ]
    assert lines[3].split()[:4] == ["rank", "host", "state", "work"]
    assert lines[4].split()[:4] == ["0", "a", "running", "25"]
    assert lines[-1] == "! rank 0 has ended"
    assert "and 60 more ranks" in lines_of(view_of(1, 100))
