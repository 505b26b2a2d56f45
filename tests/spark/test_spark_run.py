"""Tasks of a real cluster of two executors are ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.dist.doors import listed, observed
from tests.fakes.linear_training import train_linear
from tests.spark.spark_training import (
    await_file,
    die,
    fail,
    join_as_another_version,
    leave_traces,
    rank,
    who,
)
from tests.spark.spark_waits import Heard, is_running, wait_until

import horovod.spark
from horovod.errors import RankFailedError, StartError, UnsupportedError, UsageError
from horovod.spark import HorovodRunner, conf, session, spark_job
from horovod.spark.common.backend import SparkBackend, default_num_proc
from horovod.spark.common.place import host_hash
from horovod.spark.session import Session
from horovod.spark.task import get_available_devices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_is_left(spark: Any) -> Iterator[None]:
    yield
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds())


def test_ranks_know_their_places_and_know_no_secret(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    env = {"GIVEN": "x", "PYTHONHASHSEED": None, "AUDIT_TRAIL": str(tmp_path)}
    ranks = horovod.spark.run(who, num_proc=2, env=env, verbose=0)
    assert [each["rank"] for each in ranks] == [0, 1]
    assert [each["local"] for each in ranks] == [(0, 2), (1, 2)]
    assert [each["cross"] for each in ranks] == [(0, 1), (0, 1)]
    assert sorted(each["devices"] for each in ranks) == [["0"], ["1"]]
    assert {each["python"] for each in ranks} == {sys.executable}
    for index, each in enumerate(ranks):
        environ = each["environ"]
        assert environ["HOROVOD_RANK"] == str(index)
        assert environ["HOROVOD_HOSTNAME"] == host_hash()
        assert environ["GIVEN"] == "x"
        assert not {"OF_THE_DRIVER", "PYTHONHASHSEED", "HOROVOD_SECRET_KEY"} & set(environ)
        assert not is_running(each["pid"])
    assert get_available_devices() == []
    assert observed(tmp_path) <= listed()
    assert ("unpickle", "horovod/runner/function/task.py") in observed(tmp_path)


def test_a_worker_of_spark_keeps_nothing_of_a_rank(spark: Any) -> None:
    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        list(batches)
        names = [name for name in os.environ if "HOROVOD" in name or name == "LEFT_BY_A_RANK"]
        names = [name for name in names if name != "HOROVOD_KEEP_REPORTS"]  # of all tests
        loaded = [name for name in ("zipapp",) if name in sys.modules]
        yield pa.RecordBatch.from_pydict({"text": [" ".join(names + loaded)]})

    look.__module__ = "__main__"
    horovod.spark.run(leave_traces, num_proc=2)
    rows = spark.range(0, 2, 1, 2).mapInArrow(look, "text string").collect()
    assert [row.text for row in rows] == ["", ""]


def test_arguments_arrive_and_the_python_can_be_chosen(spark: Any) -> None:
    assert horovod.spark.run(rank, (5,), {"more": 2}, 2) == [(0, 7), (1, 7)]
    assert horovod.spark.run(pow, (2,), {"exp": 5}, 2, executable=sys.executable) == [32, 32]
    with pytest.raises(RankFailedError, match="the command '/nowhere/python' was not found"):
        horovod.spark.run(pow, (2, 5), num_proc=1, executable="/nowhere/python", stderr=Heard())


def test_pytorch_trains(spark: Any) -> None:
    weights = horovod.spark.run(train_linear, (0.1,), {"steps": 5}, num_proc=2)
    assert weights == [weights[0]] * 2


def test_a_failure_names_rank_executor_and_traceback(spark: Any) -> None:
    for _ in range(3):  # other programs of the machine may delay one
        heard, errors = Heard(), Heard()
        with pytest.raises(RankFailedError, match="rank 1 on") as caught:
            horovod.spark.run(fail, (1,), num_proc=2, stdout=heard, stderr=errors)
        late_s = time.time() - float(re.findall(r"it was ([\d.]+)", str(caught.value))[-1])
        if late_s < 3:
            break
    assert late_s < 3
    # It is shown by the exception alone.
    assert not [line for line in errors.lines if "Traceback" in line or "horovodrun" in line]
    assert [line for line in errors.lines if line.startswith("horovod.spark: rank 1 on")]
    assert caught.value.rank == 1
    assert re.search(r"-task1\.executor-[\w.-]+-\d+$", caught.value.host)
    assert "in fail" in caught.value.traceback
    pids = heard.numbers("process")
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_running, pids)))


def test_tasks_of_another_version_are_refused(spark: Any) -> None:
    with pytest.raises(
        RankFailedError, match=r"has Horovod 1\.99\.0, but the process that"
    ) as caught:
        horovod.spark.run(join_as_another_version, num_proc=2, verbose=0)
    assert f"has Horovod {horovod.__version__};" in str(caught.value)


def test_a_killed_rank_is_named(spark: Any) -> None:
    with pytest.raises(RankFailedError, match="killed by SIGKILL") as caught:
        horovod.spark.run(die, (0,), num_proc=2, stderr=Heard())
    assert (caught.value.rank, caught.value.signal) == (0, "SIGKILL")


def test_output_comes_at_once_with_ranks_in_front(spark: Any, tmp_path: Path) -> None:
    done = tmp_path / "done"
    heard = Heard(lambda line: done.touch())  # without it, the ranks would not end
    horovod.spark.run(
        await_file, (str(done),), num_proc=2, stdout=heard, prefix_output_with_timestamp=True
    )
    assert sorted(line.partition("[")[2][:11] for line in heard.lines) == [
        "0]<stdout>:",
        "1]<stdout>:",
    ]
    assert all(re.match(r"\w+ \w+ +\d+ \d+:\d+:\d+ \d+", line) for line in heard.lines)


def test_the_driver_serves_metrics_of_the_ranks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_METRICS_PORT", "0")
    monkeypatch.setenv("HOME", str(tmp_path))
    done, errors, found = tmp_path / "done", Heard(), list[str]()

    def scrape(line: str) -> None:
        (said,) = [each for each in errors.lines if "metrics: " in each]
        token = (tmp_path / ".horovod" / "metrics.token").read_text()
        request = urllib.request.Request(said.split("metrics: ")[1].split(";")[0])
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            found.append(answer.read().decode())
        done.touch()

    heard = Heard(scrape)
    horovod.spark.run(await_file, (str(done),), num_proc=2, stdout=heard, stderr=errors)
    assert re.search(r"^horovod_job_ranks{.*} 2$", found[0], re.MULTILINE)


def test_too_few_slots_are_said_and_waited_for_as_long_as_told(
    spark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SAY_S", 0.5)
    began_s = time.monotonic()
    with pytest.raises(
        StartError, match=r"num_proc=3 .* room for 2 \(2 executors.*, after 2 s \(start_timeout\)"
    ):
        horovod.spark.run(rank, num_proc=3, start_timeout=2)
    assert 2 <= time.monotonic() - began_s < 40
    assert "room for 2 (2 executors" in capsys.readouterr().err


def test_slots_that_others_hold_are_waited_for_in_vain(spark: Any, tmp_path: Path) -> None:
    done, started = tmp_path / "done", threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(
            horovod.spark.run,
            await_file,
            (str(done),),
            num_proc=1,
            stdout=Heard(lambda line: started.set()),
        )
        assert started.wait(180)
        with pytest.raises(StartError, match=r"^Timed out waiting for Spark tasks to start\..* 0 "):
            horovod.spark.run(rank, num_proc=2, start_timeout=2)
        done.touch()
        assert other.result() == [0]


def test_ctrl_c_leaves_nothing_behind(spark: Any, tmp_path: Path) -> None:
    main = os.getpid()
    heard = Heard()

    def act(line: str) -> None:
        if len(heard.lines) == 2:
            os.kill(main, signal.SIGINT)

    heard._act = act
    with pytest.raises(KeyboardInterrupt):
        horovod.spark.run(await_file, (str(tmp_path / "never"),), num_proc=2, stdout=heard)
    pids = heard.numbers("process")
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_job_that_spark_cancels_is_told_and_leaves_nothing_behind(
    spark: Any, tmp_path: Path
) -> None:
    heard = Heard()

    def act(line: str) -> None:
        if len(heard.lines) == 2:
            threading.Thread(target=spark.sparkContext.cancelAllJobs).start()

    heard._act = act
    with pytest.raises(RankFailedError, match=r"Spark has ended the tasks|its task has ended"):
        horovod.spark.run(
            await_file, (str(tmp_path / "never"),), num_proc=2, stdout=heard, stderr=Heard()
        )
    pids = heard.numbers("process")
    wait_until(lambda: not any(map(is_running, pids)))


def test_without_arrow_the_tasks_are_those_of_an_rdd(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_job, "find_spec", lambda name: None)
    assert horovod.spark.run(rank, num_proc=2) == [(0, 0), (1, 0)]


def test_a_backend_has_the_environment_of_the_driver(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert default_num_proc() == 2
    backend = SparkBackend(verbose=0)
    assert backend.num_processes() == 2
    first, second = backend.run(who, env={"MORE": "2"})
    for each in (first, second):
        environ = each["environ"]
        assert (environ["OF_THE_DRIVER"], environ["MORE"]) == ("1", "2")
        assert not {name for name in environ if name.startswith("PYSPARK_GATEWAY")}
        assert "CUDA_VISIBLE_DEVICES" not in environ


def test_horovod_runner_returns_what_rank_0_does(
    spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def main(argument: int) -> tuple[int, int]:
        print("printed")
        return rank(argument)

    main.__module__ = "__main__"
    assert HorovodRunner(np=0).run(main, argument=3) == (0, 3)
    assert "printed" not in capfd.readouterr().out
    assert HorovodRunner(np=-2, driver_log_verbosity="all").run(main, argument=4) == (0, 4)
    assert "[1]<stdout>:printed" in capfd.readouterr().out
    with pytest.raises(UsageError, match="driver_log_verbosity is 'some'"):
        HorovodRunner(np=1, driver_log_verbosity="some")


def test_arguments_that_make_no_sense(spark: Any) -> None:
    with pytest.raises(UnsupportedError, match="Spark starts the ranks, mpirun cannot"):
        horovod.spark.run(rank, num_proc=2, use_mpi=True)
    with pytest.raises(UsageError, match="num_proc is 0"):
        horovod.spark.run(rank, num_proc=0)
    with pytest.raises(UsageError, match=r"env\['A'\] is 1; give strings"):
        horovod.spark.run(rank, env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="start_timeout is -1"):
        horovod.spark.run(rank, num_proc=2, start_timeout=-1)
    with pytest.raises(UsageError, match=r"horovod\.spark\.run: func is 5"):
        horovod.spark.run(5)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to the ranks"):
        horovod.spark.run(lambda: lock, num_proc=2)


def test_without_a_session_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod.spark.session._active_session", lambda: None)
    with pytest.raises(UsageError, match="needs a session of Spark"):
        Session("horovod.spark.run")


def test_settings_of_spark_for_elastic_jobs() -> None:
    assert conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK == ("spark.task.maxFailures", "2147483647")
    assert conf.SPARK_CONF_BLACKLIST_ENABLED == ("spark.excludeOnFailure.enabled", "true")
    assert conf.SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK[1] == "2"
    assert len(conf.SPARK_CONF_DEFAULT_VALUES) == 8
