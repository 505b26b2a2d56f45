"""Ranks come and go with the tasks and executors of a real cluster."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.spark_training import (
    await_file,
    broadcast_object,
    raise_error,
    rank,
    steps,
    who,
)
from tests.spark.spark_waits import Heard, is_running, wait_until

from horovod._rank import context
from horovod._train.elastic.run import run
from horovod._train.elastic.state import ObjectState
from horovod.errors import RankFailedError, UsageError
from horovod.spark import run_elastic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_is_left(spark: Any) -> Iterator[None]:
    yield
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds())


def test_a_lost_executor_is_replaced_while_the_others_train(spark: Any, tmp_path: Path) -> None:
    heard = Heard()
    results = run_elastic(
        steps,
        (2, 1, 2),
        {"killed": str(tmp_path / "killed")},
        num_proc=2,
        min_num_proc=1,
        stdout=heard,
    )
    assert results == [(0, [2, 1, 2]), (1, [2, 1, 2])]
    (executor,) = heard.numbers("process")
    assert not is_running(executor)


def test_the_job_begins_with_what_there_is_and_grows(spark: Any) -> None:
    """The most tasks are more than there are slots: those that wait are no ranks."""
    results = run_elastic(steps, (2,), num_proc=1, max_num_proc=3)
    assert [each[0] for each in results] == [0, 1]
    assert results[0][1][-1] == 2


def test_an_error_names_rank_task_and_traceback(spark: Any) -> None:
    for _ in range(3):  # other programs of the machine may delay one
        heard, errors = Heard(), Heard()
        with pytest.raises(RankFailedError, match="it was me") as caught:
            run_elastic(raise_error, (0,), num_proc=2, stdout=heard, stderr=errors)
        told = re.findall(r"it was me, at ([\d.]+)", str(caught.value))
        late_s = time.time() - float(told[-1])
        if late_s < 3:
            break
    assert late_s < 3
    assert not [line for line in errors.lines if "horovodrun" in line or "Traceback" in line]
    assert caught.value.rank == 0
    # Outside of a barrier stage Spark does not tell a task its executor.
    assert re.search(r"-task[01]\.0$", caught.value.host)
    assert "in raise_error" in caught.value.traceback
    wait_until(lambda: not any(map(is_running, heard.numbers("process"))))


def test_an_error_of_a_rank_is_told_once_while_the_others_go_on(spark: Any) -> None:
    def fail_on_one() -> int:
        context.init()
        if context.rank() == 1:
            raise ValueError("it was me")

        @run
        def train(state: ObjectState) -> None:
            while context.size() > 1:
                context.global_group().barrier().wait()

        train(ObjectState(broadcast_object, context.rank))
        return context.size()

    errors = Heard()
    assert run_elastic(fail_on_one, num_proc=2, min_num_proc=1, stderr=errors) == [1]
    assert len([line for line in errors.lines if line == "ValueError: it was me"]) == 1
    assert any("rank 1 raised an exception:" in line for line in errors.lines)


def test_ctrl_c_leaves_nothing_behind(spark: Any, tmp_path: Path) -> None:
    heard = Heard(lambda line: len(heard.lines) == 2 and os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_elastic(await_file, (str(tmp_path / "never"),), num_proc=2, stdout=heard)
    pids = heard.numbers("process")
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_function_that_knows_nothing_of_elastic_jobs_just_runs(spark: Any) -> None:
    ranks = run_elastic(who, num_proc=2, verbose=0)
    assert [each["rank"] for each in ranks] == [0, 1]
    # Each attempt of a task is a host of its own.
    assert [each["local"] for each in ranks] == [(0, 1)] * 2
    assert [each["cross"] for each in ranks] == [(0, 2), (1, 2)]
    assert sorted(each["devices"] for each in ranks) == [["0"], ["1"]]


def test_arguments_that_make_no_sense(spark: Any) -> None:
    with pytest.raises(UsageError, match="num_proc=2 is not between min_num_proc=3 and"):
        run_elastic(rank, num_proc=2, min_num_proc=3)
    with (
        pytest.warns(DeprecationWarning, match="min_np is called min_num_proc now"),
        pytest.raises(UsageError, match="is not between"),
    ):
        run_elastic(rank, num_proc=2, min_np=3)
