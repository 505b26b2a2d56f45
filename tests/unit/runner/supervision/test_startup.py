from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from horovod._rendezvous import StoreServer, make_secret
from horovod._rendezvous.arrival import called_key, connected_key, process_age_s
from horovod.runner.supervision.startup import (
    Arrival,
    StartWatch,
    describe_start,
    describe_wait,
    wasted_s,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store() -> Iterator[StoreServer]:
    with StoreServer(make_secret()) as server:
        yield server


class Lines:
    """What was said, and a way to wait for it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._news = threading.Condition()

    def say(self, line: str) -> None:
        with self._news:
            self.said.append(line)
            self._news.notify_all()

    def wait(self, count: int) -> list[str]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.said) >= count, 30)
            return list(self.said)


def test_a_slow_rank_is_named_with_its_phase() -> None:
    arrivals = {0: Arrival(0.3, 2.0, 10.0), 1: Arrival(0.4, 11.5, 0.5), 2: Arrival(0.2, 2.2, 9.9)}
    assert describe_start(arrivals, ["a", "b", "b"], 12.4) == (
        "starting took 12.4 s: spawn 0.4 s (rank 1 on b was last; median 0.3 s), "
        "import 11.5 s (rank 1 on b was last; median 2.2 s), connect 0.5 s"
    )


def test_of_two_ranks_the_median_is_the_faster_one() -> None:
    line = describe_start({0: Arrival(0.1, 2, 9), 1: Arrival(0.1, 11, 0)}, ["a", "b"], 12)
    assert "import 11.0 s (rank 1 on b was last; median 2.0 s)" in line


def test_what_is_wasted_is_what_one_rank_or_connecting_took_longer() -> None:
    alike = {0: Arrival(0.1, 14.0, 0.3), 1: Arrival(0.1, 13.8, 0.5)}
    assert wasted_s(alike) == pytest.approx(0.5)
    assert wasted_s({0: Arrival(0.1, 2.0, 9.0), 1: Arrival(0.6, 11.0, 0.5)}) == pytest.approx(10)
    assert wasted_s({0: Arrival(0.1, 2.0, 9.0), 1: Arrival(0.1, 2.0, 8.0)}) == pytest.approx(8)
    assert wasted_s({0: Arrival(5.0, 2.0, 1.0)}) == pytest.approx(1)


def test_one_rank_has_no_median() -> None:
    assert describe_start({0: Arrival(1, 9.04, 0)}, ["a"], 11) == (
        "starting took 11.0 s: spawn 1.0 s, import 9.0 s, connect 0.0 s"
    )


@pytest.mark.parametrize(
    ("called", "connected", "line"),
    [
        (set(), set(), ""),
        ({0, 1, 2}, {0, 1, 2}, ""),
        (
            {0, 2},
            set(),
            "after 10 s 2 ranks have called init(); rank 1 on b has not called init() yet",
        ),
        (
            {0},
            set(),
            "after 10 s 1 rank has called init(); ranks 1 on b, 2 on b have not called init() yet",
        ),
        (
            {0, 1, 2},
            {0},
            "after 10 s 3 ranks have called init(); ranks 1 on b, 2 on b are still connecting to "
            "the others",
        ),
    ],
)
def test_while_it_goes_on(called: set[int], connected: set[int], line: str) -> None:
    assert describe_wait(called, connected, ["a", "b", "b"], 10.2) == line


def test_many_late_ranks_fit_into_a_line() -> None:
    line = describe_wait({0}, set(), ["a"] * 100, 10)
    assert line.endswith("8 on a and 91 more have not called init() yet")


def test_a_fast_start_is_not_reported(store: StoreServer) -> None:
    lines = Lines()
    with StartWatch(["a"], lines.say, time.monotonic(), 30).using(store):
        store.set(called_key(0), b"1.0")
        store.set(connected_key(0), b"0.1")
    assert lines.said == []


def test_a_program_that_never_calls_init_is_left_alone(store: StoreServer) -> None:
    lines = Lines()
    with StartWatch(["a", "a"], lines.say, time.monotonic() - 5, 5).using(store):
        pass
    assert lines.said == []
    assert not [each for each in threading.enumerate() if each.name == "horovod-start"]


def test_a_store_that_is_gone_hides_nothing(store: StoreServer) -> None:
    with StartWatch(["a"], Lines().say, time.monotonic(), 30).using(store):
        store.close()
    assert not [each for each in threading.enumerate() if each.name == "horovod-start"]


def test_a_slow_start_is_reported_while_it_goes_on_and_when_it_is_over(store: StoreServer) -> None:
    lines = Lines()
    store.set(called_key(0), b"1.0")
    with StartWatch(["a", "b"], lines.say, time.monotonic() - 30, 20).using(store):
        (waiting,) = lines.wait(1)
        assert "rank 1 on b has not called init() yet" in waiting
        store.set(called_key(1), b"15.0")
        for rank in (0, 1):
            store.set(connected_key(rank), b"0.5")
        report = lines.wait(2)[1]
    assert report.startswith("starting took 30.")
    assert "import 15.0 s (rank 1 on b was last; median 1.0 s), connect 0.5 s" in report
    assert len(lines.said) == 2


@pytest.mark.parametrize(("verbose", "said"), [(False, 0), (True, 1)])
def test_an_import_that_is_slow_on_all_ranks_is_only_told_to_who_asks(
    verbose: bool, said: int, store: StoreServer
) -> None:
    lines = Lines()
    for rank, import_s in ((0, b"19.0"), (1, b"18.5")):
        store.set(called_key(rank), import_s)
        store.set(connected_key(rank), b"0.5")
    watch = StartWatch(["a", "b"], lines.say, time.monotonic() - 20, 20, verbose=verbose)
    with watch.using(store):
        # It has nothing to wait for, so it may have ended already.
        for thread in [each for each in threading.enumerate() if each.name == "horovod-start"]:
            thread.join(30)
    assert len(lines.said) == said


def test_a_process_knows_its_age() -> None:
    age_s = process_age_s()
    assert 0 < age_s < 86400
    assert process_age_s() >= age_s
