"""Sends, receives and process sets of members, from Python threads; and who is told of their ends.

These tests also run with the sanitizers: ``make test-threads``.
"""

from __future__ import annotations

import functools
import gc
import logging
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from thread_ranks import ThreadRanks

from horovod._native import Buffer, Completions
from horovod._rank.completions import CompletionThread
from horovod._rank.reduction import PLAIN_SUM
from horovod.errors import HorovodInternalError, MismatchError, UsageError

if TYPE_CHECKING:
    from horovod._native import Handle
    from horovod._rank.group import Group

_PATIENCE_S = 60.0

DTYPES = ["u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"]


def view(array: np.ndarray[Any, Any]) -> Buffer:
    return Buffer.from_array(array)


@pytest.mark.parametrize("count", [0, 1, 1500, 200_000])
def test_a_batch_around_the_ring_arrives_for_each_dtype(count: int) -> None:
    def body(rank: int) -> None:
        group = ranks.groups[rank]
        after, before = (rank + 1) % 3, (rank - 1) % 3
        values = np.arange(count) % 7
        sent = [(values + rank).astype(dtype) for dtype in DTYPES]
        received = [np.zeros(count, dtype) for dtype in DTYPES]
        waits = [group.recv(view(array), before, tag=i) for i, array in enumerate(received)]
        waits += [group.send(view(array), after, tag=i) for i, array in enumerate(sent)]
        for handle in reversed(waits):
            assert handle.wait(_PATIENCE_S)
        for dtype, array in zip(DTYPES, received, strict=True):
            np.testing.assert_array_equal(array, (values + before).astype(dtype))
        assert {handle.source() for handle in waits[: len(DTYPES)]} == {before}

    with ThreadRanks(3) as ranks:
        ranks.run(body)


def test_a_receive_from_any_rank_says_who_sent() -> None:
    def body(rank: int) -> None:
        group = ranks.groups[rank]
        value = np.array([rank], np.int64)
        if rank:
            assert group.send(view(value), 0, name="report").wait(_PATIENCE_S)
            return
        found = {}
        for _ in range(3):
            handle = group.recv(view(value), None)
            assert handle.wait(_PATIENCE_S)
            found[handle.source()] = value[0]
        assert found == {1: 1, 2: 2, 3: 3}

    with ThreadRanks(4) as ranks:
        ranks.run(body)


def test_what_does_not_fit_names_both_ranks_and_lines() -> None:
    def body(rank: int) -> None:
        group = ranks.groups[rank]
        values = np.zeros(3 + rank, np.float32)
        if rank == 0:
            handle = group.send(view(values), 1, call_site="a.py:1")
        else:
            handle = group.recv(view(values), 0, call_site="b.py:2")
        with pytest.raises(MismatchError, match="numbers of elements") as caught:
            handle.wait(_PATIENCE_S)
        assert r"rank 0 submitted send to rank 1 with tag 0 of float32 [3] at a.py:1" in str(
            caught.value
        )
        assert r"rank 1 submitted recv from rank 0 with tag 0 of float32 [4] at b.py:2" in str(
            caught.value
        )

    with ThreadRanks(2) as ranks:
        ranks.run(body)


def test_what_a_rank_cannot_ask_for_is_refused() -> None:
    with ThreadRanks(2) as ranks:
        group = ranks.groups[0]
        buffer = view(np.zeros(3))
        for refused in (
            lambda: group.send(buffer, 2),
            lambda: group.send(buffer, -1),
            lambda: group.send(buffer, 0),
            lambda: group.recv(buffer, 0),
            lambda: group.send(buffer, 1, tag=-1),
            lambda: group.add_by_members([1], name="others"),
            lambda: group.add_by_members([0, 7], name="nobody"),
        ):
            with pytest.raises(UsageError):
                refused()


def test_members_make_sets_at_the_same_time_and_others_do_nothing() -> None:
    def total(group: Group, rank: int) -> float:
        values = np.full(1000, rank + 1.0)
        group.allreduce([view(values)], [view(values)], PLAIN_SUM).wait(_PATIENCE_S)
        return float(values[0])

    def body(rank: int) -> None:
        world = ranks.groups[rank]
        if rank == 4:
            return
        mine = [0, 3] if rank in (0, 3) else [1, 2]
        for _ in range(10):
            group = world.add_by_members(mine, name=f"pair {mine}")
            assert group.ranks == tuple(mine)
            assert total(group, rank) == sum(mine) + 2
            world.remove_by_members(group)
            with pytest.raises(UsageError, match="was removed"):
                total(group, rank)

    with ThreadRanks(5) as ranks:
        ranks.run(body)


def test_different_lists_under_one_name_are_an_error_of_all() -> None:
    def body(rank: int) -> None:
        world = ranks.groups[rank]
        with pytest.raises(MismatchError, match=r"add_process_set 0, 1 by its members at a.py:0"):
            world.add_by_members(
                [0, 1] if rank == 0 else [0, 1, 2], name="p", call_site=f"a.py:{rank}"
            )
        assert world.add_by_members([0, 1, 2], name="p").size == 3

    with ThreadRanks(3) as ranks:
        ranks.run(body)


def test_a_rank_that_shuts_down_ends_what_waits_for_it() -> None:
    with ThreadRanks(2) as ranks:
        waits = ranks.groups[0].recv(view(np.zeros(3)), 1)
        ranks.groups[1].engine.close("it is tired")
        with pytest.raises(HorovodInternalError, match="it is tired"):
            waits.wait(_PATIENCE_S)


class Token:
    """Something that a callback keeps."""


def test_callbacks_come_once_on_one_thread_and_let_go_of_what_they_keep() -> None:
    thread = CompletionThread()
    called: list[tuple[int, int]] = []
    tokens: list[weakref.ref[Token]] = []
    all_ended = threading.Event()

    def note(number: int, handle: Handle, _token: Token) -> None:
        assert handle.done()
        assert handle.wait(0)
        called.append((number, threading.get_ident()))
        if len(called) == 100:
            all_ended.set()

    def body(rank: int) -> None:
        group = ranks.groups[rank]
        for number in range(50):
            values = np.ones(3 if number % 2 else 3000)
            handle = group.allreduce([view(values)], [view(values)], PLAIN_SUM, keep=values)
            token = Token()
            tokens.append(weakref.ref(token))
            thread.call_when_done(handle, functools.partial(note, number, handle, token))

    with ThreadRanks(2) as ranks:
        ranks.run(body)
        assert all_ended.wait(_PATIENCE_S)
    thread.close()
    assert sorted(number for number, _ in called) == sorted(2 * [*range(50)])
    assert len({ident for _, ident in called}) == 1
    gc.collect()
    assert [token() for token in tokens if token() is not None] == []


def test_an_error_ends_in_a_callback_and_one_of_a_callback_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("horovod"), "propagate", True)
    thread = CompletionThread()
    ended = threading.Event()
    with ThreadRanks(2) as ranks:
        first, second = (ranks.groups[0].recv(view(np.zeros(3)), 1, tag=tag) for tag in (1, 2))
        thread.call_when_done(first, lambda: 1 / 0)
        thread.call_when_done(second, ended.set)
        with pytest.raises(UsageError, match="told to somebody already"):
            thread.call_when_done(second, ended.set)
    assert ended.wait(_PATIENCE_S)
    with pytest.raises(HorovodInternalError):
        first.wait(0)
    thread.close()  # both have ended, in any order; it calls for both
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(UsageError, match="closed"):
        thread.call_when_done(first, ended.set)


def test_a_closed_list_drops_what_comes() -> None:
    completions = Completions()
    assert completions.take(0.0) == []
    with ThreadRanks(2) as ranks:
        handle = ranks.groups[0].recv(view(np.zeros(3)), 1)
        token = Token()
        kept = weakref.ref(token)
        handle.notify(completions, token)
        del token
        assert kept() is not None
        completions.close()
        assert completions.closed
        assert completions.take() == []
    assert handle.done()
    gc.collect()
    assert kept() is None


_LEAVES_THE_THREAD = """
import os

import numpy as np
from horovod import _native
from horovod._rank.completions import CompletionThread
from horovod._rank.group import Group

engines = _native.make_world(2)
groups = [Group(engine, 0, [0, 1]) for engine in engines]
array = np.zeros(3)
handle = groups[0].recv(_native.Buffer.from_array(array), 1, keep=array)
thread = CompletionThread()
thread.call_when_done(handle, lambda: os.write(1, b"called"))
if {closes}:
    for engine in engines:
        engine.close("the end")
"""


@pytest.mark.parametrize("closes", [False, True])
def test_a_process_ends_though_its_thread_waits(closes: bool) -> None:
    for _ in range(3):
        program = _LEAVES_THE_THREAD.format(closes=closes)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout in ("", "called")
