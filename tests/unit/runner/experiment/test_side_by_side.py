"""Runs that go on at the same time have slots of their own, and all hear of a signal."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment.side_by_side import Lane, divided, in_lanes
from horovod.runner.output.console import Console
from horovod.runner.placing.hosts import Slot, parse_hosts
from horovod.runner.starting.requests import Caller

if TYPE_CHECKING:
    from collections.abc import Sequence

DEADLINE_S = 60.0


def names(lanes: Sequence[Sequence[Slot]]) -> list[str]:
    return [" ".join(slot.hostname for slot in slots) for slots in lanes]


@pytest.mark.parametrize(
    ("hosts", "at_most", "expected"),
    [
        ("a:4,b:2", 5, ["a a", "a a", "b b"]),
        ("a:4,b:2", 2, ["a a", "a a"]),
        ("a:3,b:2", 5, ["a a", "a b"]),
        ("a,b,c,d", 5, ["a b", "c d"]),
        ("localhost", 3, ["localhost localhost"] * 3),
    ],
)
def test_runs_have_slots_of_their_own(hosts: str, at_most: int, expected: list[str]) -> None:
    assert names(divided(parse_hosts(hosts), 2, at_most, shares_hosts=True)) == expected


def test_runs_with_gpus_share_no_host() -> None:
    hosts = parse_hosts("a:4,b:2,c:1,d:1")
    assert names(divided(hosts, 2, 9, shares_hosts=False)) == ["a a", "b b", "c d"]
    assert names(divided(parse_hosts("localhost"), 2, 9, shares_hosts=False)) == [
        "localhost localhost"
    ]


def test_ranks_of_each_run_begin_with_0() -> None:
    lanes = divided(parse_hosts("a:4"), 2, 2, shares_hosts=True)
    assert [[(slot.rank, slot.local_rank, slot.size) for slot in slots] for slots in lanes] == [
        [(0, 0, 2), (1, 1, 2)]
    ] * 2


def test_without_room_for_one_run_nothing_begins() -> None:
    with pytest.raises(UsageError, match="2 ranks were requested, but only 1 slot is available"):
        divided(parse_hosts("a:1"), 2, 2, shares_hosts=True)


def lanes_on(console: Console, interrupts: int | None, count: int = 2) -> list[Lane]:
    return [Lane([], Caller(console, interrupts))] * count


def test_each_index_is_done_once_in_turn_and_two_at_a_time() -> None:
    begun: list[int] = []
    both = threading.Barrier(2)

    def work(index: int, lane: Lane) -> bool:
        begun.append(index)
        both.wait(DEADLINE_S)
        return True

    with Console(None, None) as console:
        in_lanes(range(6), lanes_on(console, None), work)
    assert sorted(begun) == [*range(6)]
    assert {*begun[:2]} == {0, 1}


def test_a_signal_reaches_all_lanes_and_ends_the_waiting() -> None:
    heard: list[bytes] = []
    read_end, write_end = os.pipe()
    both = threading.Barrier(2, lambda: os.write(write_end, b"\2"))

    def work(index: int, lane: Lane) -> bool:
        assert lane.caller.interrupts is not None
        os.set_blocking(lane.caller.interrupts, True)
        both.wait(DEADLINE_S)
        heard.append(os.read(lane.caller.interrupts, 1))
        return False

    with Console(None, None) as console:
        in_lanes(range(6), lanes_on(console, read_end), work)
    assert heard == [b"\2"] * 2
    for each in (read_end, write_end):
        os.close(each)


def test_an_error_ends_all_lanes_and_is_raised() -> None:
    def work(index: int, lane: Lane) -> bool:
        raise UsageError("the disk is full")

    with Console(None, None) as console, pytest.raises(UsageError, match="the disk is full"):
        in_lanes(range(6), lanes_on(console, None), work)
