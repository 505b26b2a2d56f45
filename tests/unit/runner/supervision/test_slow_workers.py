"""A rank is called slow if the job would gain without it, and only then."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod._rank.reports.wait import INTERVAL_S
from horovod._rendezvous.secret import make_secret
from horovod._rendezvous.server import StoreServer
from horovod._rendezvous.store import StoreClient
from horovod._rendezvous.waits import WANTED_KEY, Waits, waits_key
from horovod.errors import StartError
from horovod.runner.supervision.slow_worker_watch import SlowWorkerWatch
from horovod.runner.supervision.slow_workers import (
    FEWEST_WINDOWS,
    Finding,
    SlowMember,
    SlowMembers,
    SlowWorkers,
    describe,
    gains,
    summary,
)
from horovod.runner.supervision.slow_workers import WINDOW_S as WINDOW_S_OF_JOBS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WINDOW_S = 5.0


def step(busy: Sequence[float]) -> list[float]:
    """The part of a step that each rank waits, if it computes for so long."""
    longest = max(busy)
    return [1 - one / longest for one in busy]


class Job:
    """Ranks that tell of their waits at the end of each window."""

    def __init__(self, size: int) -> None:
        self.workers = SlowWorkers(size, WINDOW_S)
        self.told = {rank: Waits(0.0, 0.0) for rank in range(size)}
        assert self.workers.add(self.told) == []

    def window(self, waiting: Iterable[float], length_s: float = WINDOW_S) -> list[Finding]:
        for rank, part in enumerate(waiting):
            last = self.told[rank]
            waited_s = last.waited_s + part * length_s
            self.told[rank] = Waits(last.at_s + length_s, waited_s)
        return self.workers.add(self.told)

    def windows(self, count: int, waiting: Callable[[], Iterable[float]]) -> list[Finding]:
        return [finding for _ in range(count) for finding in self.window(waiting())]


def test_a_rank_that_computes_longer_has_the_gain_of_the_difference() -> None:
    assert gains(dict(enumerate(step([1.0, 2.0, 1.0])))) == {0: 0.0, 1: 0.5, 2: 0.0}


def test_the_gain_ends_where_the_next_one_is_slow() -> None:
    assert gains(dict(enumerate(step([1.0, 2.0, 1.5])))) == {0: 0.0, 1: 0.25, 2: 0.0}


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=9))
def test_a_gain_is_what_a_step_saves_without_the_rank(busy: list[float]) -> None:
    for rank, gain in gains(dict(enumerate(step(busy)))).items():
        others = [*busy[:rank], *busy[rank + 1 :]]
        assert gain == pytest.approx(1 - max(others) / max(busy), abs=1e-9)


def test_one_rank_alone_makes_nobody_wait() -> None:
    assert gains({0: 0.0}) == {0: 0.0}
    job = Job(1)
    assert job.windows(10, lambda: [0.0]) == []


def test_a_throttled_rank_is_named_within_20_s_and_then_no_more() -> None:
    job = Job(4)
    found = job.windows(3, lambda: step([1.0, 1.05, 2.0, 0.95]))
    assert found == [Finding(2, pytest.approx(0.475), True)]
    assert job.windows(100, lambda: step([1.0, 1.05, 2.0, 0.95])) == []


def test_a_rank_that_is_normal_again_is_told_once() -> None:
    job = Job(2)
    job.windows(5, lambda: step([1.0, 2.0]))
    found = job.windows(20, lambda: [0.1, 0.1])  # the time that the network takes
    assert [(each.rank, each.is_slow) for each in found] == [(1, False)]
    assert job.workers.ranks[1].slow_s == pytest.approx(8 * WINDOW_S)


def test_a_gain_around_the_limit_does_not_flap() -> None:
    job = Job(2)
    windows = [0.12, 0.08] * 50
    found = [each for gain in windows for each in job.window([gain, 0.0])]
    assert len(found) <= 1


def test_a_checkpoint_now_and_then_is_nobodys_fault() -> None:
    job = Job(4)
    windows = [[0.9, 0.9, 0.9, 0.0] if i % 4 == 0 else [0.1, 0.1, 0.1, 0.1] for i in range(100)]
    assert [each for waiting in windows for each in job.window(waiting)] == []


def test_two_slow_ranks_of_one_host_are_not_blamed_one_by_one() -> None:
    job = Job(4)
    assert job.windows(20, lambda: step([1.0, 1.0, 3.0, 3.0])) == []


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 16))
def test_noise_names_nobody_in_half_an_hour(seed: int, size: int) -> None:
    noise = random.Random(seed)
    job = Job(size)
    # Each window is the mean of many steps, so what is left of the noise of a step is small.
    assert job.windows(360, lambda: step([noise.uniform(0.93, 1.0) for _ in range(size)])) == []


def test_long_steps_make_long_windows() -> None:
    job = Job(2)
    found: list[Finding] = []
    for index in range(60):  # a step of 30 s ends with every sixth report
        ends = index % 6 == 5
        found += job.window([3.0 if ends else 0.0, 0.0])
        assert len(found) == (index >= 6 * FEWEST_WINDOWS - 1)
    assert found[0].gain == pytest.approx(0.5)


def test_no_verdict_before_all_ranks_have_told() -> None:
    workers = SlowWorkers(2)
    for at_s in range(0, 100, 5):
        assert workers.add({0: Waits(at_s, 0.0)}) == []


def test_what_is_told() -> None:
    slow = describe(Finding(3, 0.38, True), "rank 3 on b")
    assert slow == "rank 3 on b makes the others wait: without it, a step would take 38 % less time"
    assert (
        describe(Finding(3, 0.0, False), "rank 3 on b")
        == "rank 3 on b no longer makes the others wait"
    )
    assert summary({"rank 0 on a": Job(3).workers.ranks[0]}, 9.0) == ""


class Generations:
    """An elastic job of workers that tell of their waits."""

    def __init__(self) -> None:
        self.members = SlowMembers(WINDOW_S)
        self.told: dict[int, Waits] = {}

    def begin(self, *identities: str) -> None:
        self.members.follow(identities)
        self.told = {rank: Waits(0.0, 0.0) for rank in range(len(identities))}
        assert self.members.add(self.told) == []

    def windows(self, count: int, busy: Sequence[float]) -> list[str]:
        lines = []
        for _ in range(count):
            for rank, part in enumerate(step(busy)):
                last = self.told[rank]
                waits = Waits(last.at_s + WINDOW_S, last.waited_s + part * WINDOW_S)
                self.told[rank] = waits
            lines += self.members.add(self.told)
        return lines


def test_a_slow_worker_is_known_by_its_identity_in_every_generation() -> None:
    job = Generations()
    job.begin("a-0", "b-1", "c-2")
    assert job.windows(3, [1.0, 1.0, 2.0]) == [
        "rank 2 (c-2) makes the others wait: without it, a step would take 50 % less time"
    ]
    assert job.members.slow() == [SlowMember("c-2", "rank 2 (c-2)", 0.5)]
    job.begin("c-2", "b-1")
    assert job.members.slow() == []
    assert job.windows(3, [2.0, 1.0]) == []  # the user knows
    assert job.members.slow() == [SlowMember("c-2", "rank 0 (c-2)", 0.5)]
    assert job.windows(10, [1.0, 1.01]) == ["rank 0 (c-2) no longer makes the others wait"]
    assert job.members.slow() == []
    assert set(job.members.totals()) == {"c-2"}
    assert job.members.totals()["c-2"].slow_s > 6 * WINDOW_S


def test_windows_of_two_generations_are_not_mixed() -> None:
    job = Generations()
    for _ in range(10):  # two windows each are no majority of five
        job.begin("a-0", "b-1")
        assert job.windows(2, [1.0, 2.0]) == []
    job.begin("a-0")
    assert job.windows(5, [1.0]) == []


def test_a_rank_is_named_within_20_s_of_real_windows() -> None:
    begun, read = WINDOW_S_OF_JOBS, WINDOW_S_OF_JOBS
    assert begun + FEWEST_WINDOWS * WINDOW_S_OF_JOBS + read <= 20.0
    assert INTERVAL_S == WINDOW_S_OF_JOBS


def test_malformed_waits_are_refused() -> None:
    for text in (b"", b"[1]", b'{"a": 1}', b'["x", 2]', b"[" * 100000):
        with pytest.raises(StartError, match="malformed waits"):
            Waits.from_json(text)
    waits = Waits(3.5, 1.25)
    assert Waits.from_json(waits.to_json()) == waits


def test_the_watch_reads_what_ranks_tell_and_sums_up() -> None:
    lines: list[str] = []
    said = threading.Semaphore(0)

    def say(line: str) -> None:
        lines.append(line)
        said.release()

    secret = make_secret()
    server = StoreServer(secret, "127.0.0.1", 0)
    with server, StoreClient(server.address, server.port, secret) as ranks:
        watch = SlowWorkerWatch(["a", "b"], say, window_s=0.01)
        with watch.using(server):
            assert ranks.try_get(WANTED_KEY) == b""
            at_s = 0.0
            while not said.acquire(timeout=0.02):
                at_s += 1.0
                for rank in range(2):
                    waits = Waits(at_s, at_s * 0.5 * (rank == 0))
                    ranks.set(waits_key(0, rank), waits.to_json())
    assert lines[0] == describe(Finding(1, 0.5, True), "rank 1 on b")
    assert lines[1].startswith("the others waited for rank 1 on b for ")
    assert len(lines) == 2
