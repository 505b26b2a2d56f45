"""Any number of Python threads may call one engine, and no object outlives its operation.

These tests also run with the sanitizers: ``make test-threads``.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from busy_threads import Tensors, Values, await_end, given, run_threads, start
from thread_ranks import ThreadRanks

from horovod._rank.reduction import PLAIN_SUM
from horovod.errors import DuplicateNameError, HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._native import Handle
    from horovod._rank.group import Group

NUM_OPERATIONS = 600
_PATIENCE_S = 60.0


def allreduce(group: Group, name: str, count: int = 3, **options: Any) -> tuple[Handle, Any]:
    """Submits a sum that nobody else keeps alive; also returns a weak reference to its arrays."""
    kept = Tensors(np.ones(count), np.zeros(count))
    source, target = kept.buffers
    handle = group.allreduce([source], [target], PLAIN_SUM, name=name, keep=kept, **options)
    return handle, weakref.ref(kept)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.001)


@pytest.mark.parametrize("num_threads", [2, 8, 20])
def test_threads_get_their_own_results_in_overlapping_process_sets(num_threads: int) -> None:
    def body(rank: int) -> None:
        world = ranks.groups[rank]
        groups = [world, world.add([0, 1]), world.add([1, 2]), world.add([0, 2])]

        def submit(thread: int) -> None:
            for i in range(0, NUM_OPERATIONS // num_threads, 2):
                pair = [
                    start(i + j + thread, group, f"{thread}.{j}", i, count)
                    for j, (group, count) in enumerate(
                        ((groups[thread % 4], 6), (groups[(thread + i) % 4], 600))
                    )
                    if group.is_member
                ]
                for check in reversed(pair):
                    check.finish()

        run_threads(num_threads, submit)

    with ThreadRanks(3) as ranks:
        ranks.run(body)


def test_an_operation_in_flight_keeps_only_its_own_tensors() -> None:
    looked = threading.Barrier(2)
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            group = ranks.groups[rank]
            lasting = allreduce(group, "lasting") if rank == 0 else None
            for number in range(20):
                handle, kept = allreduce(group, f"{number}", waits_next=number % 2 == 0)
                await_end(handle)
                assert kept() is None
            if lasting is not None:
                assert lasting[1]() is not None
            looked.wait(_PATIENCE_S)
            if lasting is None:
                lasting = allreduce(group, "lasting")
            await_end(lasting[0])
            assert lasting[1]() is None

        ranks.run(body)


def test_what_nobody_waits_for_is_let_go_without_another_call() -> None:
    with ThreadRanks(2) as ranks:
        handles, kept = [], []
        for number in range(10):
            for group in ranks.groups:
                handle, reference = allreduce(group, f"{number}", waits_next=number % 2 == 0)
                kept.append(reference)
                if number > 5:
                    handles.append(handle)
            del handle
        wait_until(lambda: not any(reference() for reference in kept))


def test_what_fails_is_let_go() -> None:
    with ThreadRanks(2) as ranks:
        group = ranks.groups[0]
        handle, kept = allreduce(group, "pending")
        refused = Tensors(np.ones(3), np.zeros(3))
        of_refused = weakref.ref(refused)
        with pytest.raises(DuplicateNameError):
            group.allreduce(refused.buffers[:1], refused.buffers[1:], name="pending", keep=refused)
        del refused
        assert of_refused() is None
        assert kept() is not None
        ranks.engines[0].close()
        assert kept() is None
        with pytest.raises(HorovodInternalError):
            handle.wait()


class SubmitsWhenItDies(Tensors):
    """Its end submits another operation, whose handle is left to ``started``."""

    def __init__(
        self, group: Group, name: str, started: list[tuple[Handle, Values]], *arrays: Values
    ) -> None:
        super().__init__(*arrays)
        self._group, self._name, self._started = group, name, started

    def __del__(self) -> None:
        source = given(self._group.rank, 7, 5)
        kept = Tensors(source, target := np.zeros(5))
        handle = self._group.allreduce(
            kept.buffers[:1], kept.buffers[1:], PLAIN_SUM, name=self._name, keep=kept
        )
        self._started.append((handle, target))


@pytest.mark.slow
@pytest.mark.parametrize("in_cycles", [False, True], ids=["references", "garbage collection"])
def test_objects_that_die_may_submit(in_cycles: bool) -> None:
    num_threads, num_operations = 4, 40
    thresholds = gc.get_threshold()
    if in_cycles:
        gc.set_threshold(7, 2, 2)

    def body(rank: int) -> list[tuple[Handle, Values]]:
        group = ranks.groups[rank]
        started: list[tuple[Handle, Values]] = []

        def submit(thread: int) -> None:
            for number in range(num_operations):
                name = f"{thread}.{number}"
                array = given(rank, number, 3)
                kept = SubmitsWhenItDies(group, f"{name}.late", started, array)
                keep: Any = kept
                if in_cycles:
                    keep = [kept]
                    keep.append(keep)
                handle = group.allreduce(
                    kept.buffers, kept.buffers, PLAIN_SUM, name=name, keep=keep
                )
                del kept, keep
                await_end(handle)
                np.testing.assert_array_equal(array, given(0, number, 3) + given(1, number, 3))

        run_threads(num_threads, submit)
        return started

    with ThreadRanks(2) as ranks:
        try:
            everyones = ranks.run(body)
            gc.collect()
            for started in everyones:
                wait_until(lambda started=started: len(started) == num_threads * num_operations)
        finally:
            gc.set_threshold(*thresholds)
        for started in everyones:
            for handle, target in started:
                await_end(handle)
                np.testing.assert_array_equal(target, given(0, 7, 5) + given(1, 7, 5))


def test_threads_evaluate_and_log_beside_the_training() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            group, engine = ranks.groups[rank], ranks.engines[rank]
            over = threading.Event()

            def train() -> None:
                for step in range(200):
                    await_end(allreduce(group, f"gradient{step % 3}")[0])
                over.set()

            def evaluate() -> None:
                for _ in range(50):
                    handle, _ = allreduce(group, "metric")
                    wait_until(handle.done)
                    assert handle.finished()

            def log() -> None:
                while not over.wait(0.001):
                    assert engine.statistics()["submitted"] >= 0
                    assert engine.error() == ""
                    assert not engine.closed()

            bodies = (train, evaluate, log)
            run_threads(len(bodies), lambda number: bodies[number]())

        ranks.run(body)


_PROGRAM_WITH_DAEMONS = """
import threading, time
import numpy as np
from horovod._rank import context
from horovod._native import Buffer

context.init()
going = threading.Semaphore(0)

def submit(number):
    group = context.global_group()
    array = np.ones(3)
    buffers = [Buffer.from_array(array)]
    while True:
        group.allreduce(buffers, buffers, name=str(number), waits_next=True, keep=array).wait()
        going.release()

threading.excepthook = lambda _: None
for number in range(8):
    threading.Thread(target=submit, args=(number,), daemon=True).start()
for _ in range(100):
    going.acquire()
"""


def test_a_program_ends_well_while_its_daemon_threads_submit() -> None:
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", _PROGRAM_WITH_DAEMONS],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_call_site_may_be_in_a_file_whose_name_is_no_unicode() -> None:
    with ThreadRanks(1) as ranks:
        handle, _ = allreduce(ranks.groups[0], "x", call_site="na\udcefve.py:3")
        await_end(handle)


def test_a_name_that_cannot_be_sent_is_quoted_with_what_to_do() -> None:
    words = r"'layer\\udc80' .*errors='replace'"
    with ThreadRanks(1) as ranks, pytest.raises(UsageError, match=words):
        allreduce(ranks.groups[0], "layer\udc80")
