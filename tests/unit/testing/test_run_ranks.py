"""Functions on several ranks: results, failures, and ranks that do not end.

No framework is imported here: the processes of ranks import this module, too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod.errors import RankFailedError, ShutDownError, UsageError
from horovod.testing import run_ranks

both_ways = pytest.mark.parametrize("processes", [False, True])


class OwnError(Exception):
    """An error of the code that is tested."""


def total(value: int) -> int:
    """The sum over the ranks."""
    values = bytearray([value])
    buffer = _native.Buffer.from_array(values)
    group = context.global_group()
    group.allreduce([buffer], [buffer], PLAIN_SUM, name="x", keep=values).wait()
    return values[0]


def barrier() -> None:
    """Waits for all ranks."""
    context.global_group().barrier().wait()


def test_a_process_loads_no_framework_that_its_function_does_not_use() -> None:
    def loaded() -> set[str]:
        context.init()
        total(1)
        return {"torch", "tensorflow", "numpy", "pytest"} & set(sys.modules)

    assert run_ranks(1, loaded, processes=True) == [{"pytest"}]


@both_ways
def test_hosts_are_emulated(processes: bool) -> None:
    def place() -> tuple[int, ...]:
        context.init()
        return (
            context.rank(),
            context.local_rank(),
            context.local_size(),
            context.cross_rank(),
            context.cross_size(),
        )

    assert run_ranks(3, place, hosts=[2, 1], processes=processes) == [
        (0, 0, 2, 0, 2),
        (1, 1, 2, 0, 1),
        (2, 0, 1, 1, 2),
    ]


@both_ways
def test_the_first_failure_is_raised_and_names_its_rank(processes: bool) -> None:
    def fail() -> None:
        context.init()
        if context.rank() == 1:
            raise OwnError("no such file")
        total(1)

    with pytest.raises(OwnError, match="no such file") as caught:
        run_ranks(3, fail, processes=processes)
    if sys.version_info >= (3, 11):
        note = "\n".join(caught.value.__notes__)
        assert note.startswith("Raised on rank 1 of horovod.testing.run_ranks")
        assert "The other ranks that failed:\n  rank " in note
        assert "it raised OwnError" in note
        assert ("in fail\n    raise OwnError" in note) == processes


@both_ways
def test_a_rank_that_ends_without_a_job_stops_the_others(processes: bool) -> None:
    def body() -> None:
        if os.environ.get("HOROVOD_RANK", threading.current_thread().name) in ("1", "rank 1"):
            raise OwnError("before init")
        context.init()
        barrier()

    with pytest.raises(OwnError, match="before init"):
        run_ranks(2, body, processes=processes)


def test_a_rank_that_returns_early_has_left_the_job() -> None:
    def body() -> None:
        context.init()
        if context.rank() == 0:
            with pytest.raises(ShutDownError, match="its function has returned"):
                barrier()

    run_ranks(2, body)


@pytest.mark.slow
@both_ways
def test_ranks_that_do_not_end_are_named_with_where_they_are(processes: bool) -> None:
    def body() -> None:
        context.init()
        barrier()
        if context.rank() == 1:
            threading.Event().wait(90.0)  # not within Horovod

    with pytest.raises(TimeoutError) as caught:
        run_ranks(2, body, processes=processes, timeout=20.0 if processes else 3.0)
    text = str(caught.value)
    assert "rank 1 is here:" in text
    assert "test_run_ranks.py" in text
    assert "rank 0 is here" not in text


@pytest.mark.slow
@both_ways
def test_ranks_that_wait_for_each_other_are_stopped(processes: bool) -> None:
    def body() -> None:
        context.init()
        if context.rank() == 0:
            total(1)
        else:
            threading.Event().wait(30.0)

    with pytest.raises((TimeoutError, ShutDownError)) as caught:
        run_ranks(2, body, processes=processes, timeout=12.0 if processes else 1.0)
    assert "rank" in str(caught.value)


def test_a_process_that_is_killed_is_named() -> None:
    def body() -> None:
        context.init()
        if context.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        barrier()

    with pytest.raises(RankFailedError, match="rank 1 was killed by SIGKILL") as caught:
        run_ranks(2, body, processes=True)
    assert (caught.value.rank, caught.value.exit_code) == (1, 137)


def test_a_process_that_leaves_without_a_result_is_named() -> None:
    with pytest.raises(RankFailedError, match="rank 0 ended with code 0, but before"):
        run_ranks(1, os._exit, 0, processes=True)


def test_a_result_that_cannot_be_sent_is_an_error_of_its_rank() -> None:
    with pytest.raises(TypeError, match="pickle"):
        run_ranks(1, threading.Lock, processes=True)


@both_ways
def test_jobs_follow_each_other_in_one_run(processes: bool) -> None:
    def body() -> list[int]:
        sums = []
        for _ in range(2):
            context.init()
            sums.append(total(1))
            context.shutdown()
        return sums

    assert run_ranks(2, body, processes=processes) == [[2, 2]] * 2


def test_threads_that_a_rank_starts_can_belong_to_it() -> None:
    def body() -> list[int]:
        context.init()
        barrier()
        ranks: list[int] = []
        thread = threading.Thread(target=context.inherited(lambda: ranks.append(context.rank())))
        thread.start()
        thread.join()
        barrier()
        return ranks

    assert run_ranks(3, body) == [[0], [1], [2]]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> tuple[int, int]:
        context.init()
        return context.settings().fusion_threshold, context.size()

    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1234")
    # The test may itself run on a rank.
    monkeypatch.setenv("HOROVOD_RANK", "5")
    monkeypatch.setenv("HOROVOD_SIZE", "6")
    assert run_ranks(2, body) == [(1234, 2)] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_ranks": 0}, "at least one rank"),
        ({"num_ranks": 3, "hosts": [2, 2]}, r"hosts=\[2, 2\]\): the hosts have 4 ranks"),
        ({"num_ranks": 2, "hosts": [2, 0]}, "each needs at least one"),
        ({"num_ranks": 2, "timeout": 0.0}, "must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_ranks(function=time.time, **arguments)


def test_ranks_of_mpi_cannot_be_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CPU_OPERATIONS", "mpi")
    with pytest.raises(UsageError, match="cannot be threads"):
        run_ranks(2, time.time)


def test_a_function_that_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent to the ranks: TypeError"):
        run_ranks(1, lambda: lock, processes=True)
