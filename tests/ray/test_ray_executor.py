"""Actors of a real cluster of two nodes are ranks."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.dist.doors import listed, observed
from tests.ray.ray_ranks import Counter, rank
from tests.ray.ray_waits import PATIENCE_S, START_S, is_running, wait_until

from horovod._rank import context
from horovod.errors import StartError, UsageError
from horovod.ray import BaseHorovodWorker, RayExecutor
from horovod.ray.job_actor import Found, host_names
from horovod.ray.strategy import create_placement_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from horovod.ray.runner import MiniSettings

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def settings(**kwargs: Any) -> MiniSettings:
    return RayExecutor.create_settings(**{"timeout_s": START_S, **kwargs})


def groups() -> list[str]:
    """The states of all placement groups that are not gone."""
    states = [each["state"] for each in placement_group_table().values()]
    return [state for state in states if state != "REMOVED"]


def test_keras_trains() -> None:
    def train() -> list[float]:
        import keras
        import numpy as np

        import horovod.keras as hvd

        hvd.init()
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(np.ones((8, 4)), np.ones(8), callbacks=[broadcast], verbose=0)
        return [float(each) for each in np.ravel(model.get_weights()[0])]

    with RayExecutor(settings(), num_workers=2) as executor:
        weights = executor.run(train)
    assert weights == [weights[0]] * 2


def test_an_object_lives_in_each_worker(tmp_path: Path) -> None:
    executor = RayExecutor(settings(), num_hosts=2, num_workers_per_host=1)
    assert executor.num_workers == 2
    env = {"OMP_NUM_THREADS": 1, "AUDIT_TRAIL": tmp_path}
    executor.start(Counter, executable_args=[10], extra_env_vars=env)
    assert executor.execute(lambda counter: counter.add(2)) == [10, 12]
    assert executor.execute(lambda counter: counter.add(2)) == [10, 14]
    assert executor.execute_single(lambda counter: counter.value) == 10
    assert ray.get(executor.run_remote(os.getenv, args=["OMP_NUM_THREADS"])) == ["1", "1"]
    with pytest.raises(UsageError, match="run already"):
        executor.start()
    assert executor.run(rank) == [0, 1]
    assert observed(tmp_path) <= listed()
    assert ("bind", "horovod/_rendezvous/accept.py") in observed(tmp_path)
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(UsageError, match=r"call start\(\) first"):
        executor.run(rank)
    executor.start()
    assert len(executor.run(rank)) == 2
    executor.shutdown()


def test_a_killed_worker_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def die() -> None:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        context.global_group().barrier().wait()

    with RayExecutor(settings(), num_workers=4) as executor:
        pids = executor.run(os.getpid)
        with caplog.at_level(logging.ERROR), pytest.raises(ray.exceptions.RayActorError) as caught:
            executor.run(die)
        assert f"rank 1 (process {pids[1]}" in caplog.text
        error: Any = caught.value
        assert (error.rank, error.pid) == (1, pids[1])
        wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_workers_of_another_version_are_refused() -> None:
    def join() -> None:
        import horovod

        horovod.__version__ = "1.99.0"
        context.init()

    with (
        RayExecutor(settings(), num_workers=2) as executor,
        pytest.raises(StartError, match=r"has Horovod 1\.99\.0, but the process that opened"),
    ):
        executor.run(join)


def test_an_error_names_its_rank_and_what_cannot_be_sent_is_refused() -> None:
    def fail() -> None:
        if rank() == 1:
            raise ValueError("no data")
        context.global_group().barrier().wait()

    def items() -> Iterator[int]:
        yield rank()

    with RayExecutor(settings(), num_workers=2) as executor:
        for refused in (items, functools.partial(items)):
            with pytest.raises(UsageError, match=r"run: func is .*a generator or coroutine"):
                executor.run(refused)
        pids = executor.run(os.getpid)
        with pytest.raises(ValueError, match="no data") as caught:
            executor.run(fail)
        error: Any = caught.value
        assert (error.rank, error.pid, error.host.count(".")) == (1, pids[1], 3)
        if sys.version_info >= (3, 11):
            assert error.__notes__[0].startswith(f"Raised on rank 1 (process {pids[1]} on ")
        executor.shutdown()
        executor.start()
        with pytest.raises(UsageError, match="returned a generator, which cannot be sent"):
            executor.run(lambda: items())


def test_ranks_of_a_node_see_its_gpus_and_its_loss_ends_the_job(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray counts GPUs that it is told of; nothing uses them here."""
    node = cluster.add_node(num_cpus=2, num_gpus=2, node_ip_address="127.0.0.3")
    with RayExecutor(settings(), num_workers=2, use_gpu=True) as executor:
        assert executor.run(os.getenv, args=["CUDA_VISIBLE_DEVICES"]) in (["0,1"] * 2, ["1,0"] * 2)
        assert executor.run(rank) == [0, 1]
        hanging = executor.run_remote(time.sleep, args=[1000])
        cluster.remove_node(node, allow_graceful=False)
        with caplog.at_level(logging.ERROR), pytest.raises(ray.exceptions.RayActorError):
            executor.run(rank)
        assert "on 127.0.0.3, node" in caplog.text
        del hanging
    wait_until(lambda: ray.cluster_resources()["CPU"] == 4)


def test_without_room_nothing_stays_reserved() -> None:
    with pytest.raises(TimeoutError, match=r"did not have 9 x 1 CPU within 1 s: it has 4 CPU"):
        RayExecutor(settings(placement_group_timeout_s=1), num_workers=9).start()
    with pytest.raises(TimeoutError, match=r"3 x 1 CPU on different nodes"):
        RayExecutor(settings(placement_group_timeout_s=1), num_hosts=3).start()
    wait_until(lambda: not groups())
    group, bundles = create_placement_group({"CPU": 1}, 4, PATIENCE_S, "PACK")
    assert bundles == [{"CPU": 1.0}] * 4
    ray.util.remove_placement_group(group)
    wait_until(lambda: not groups())


def test_a_constructor_that_fails_leaves_nothing_behind() -> None:
    executor = RayExecutor(settings(), num_workers=2)
    with pytest.raises(TypeError, match="first"):
        executor.start(Counter)
    wait_until(lambda: not groups())
    executor.shutdown()


def test_the_group_of_the_caller_is_used_and_stays() -> None:
    group = placement_group([{"CPU": 1}] * 3)
    assert group.wait(PATIENCE_S)

    @ray.remote(num_cpus=1)
    def trial() -> list[int]:
        with RayExecutor(settings(), num_workers=2) as executor:
            return executor.run(rank)

    where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    assert ray.get(trial.options(scheduling_strategy=where).remote()) == [0, 1]
    assert groups() == ["CREATED"]
    ray.util.remove_placement_group(group)
    wait_until(lambda: not groups())


def test_a_group_of_the_caller_without_room_is_no_endless_wait() -> None:
    group = placement_group([{"CPU": 1}] * 2)
    assert group.wait(PATIENCE_S)

    @ray.remote(num_cpus=1)
    def trial() -> str:
        try:
            RayExecutor(settings(timeout_s=5, placement_group_timeout_s=1), num_workers=3).start()
        except TimeoutError as error:
            return str(error)
        return ""

    where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    text = ray.get(trial.options(scheduling_strategy=where).remote(), timeout=PATIENCE_S)
    ray.util.remove_placement_group(group)
    # One has no room; on a busy machine others may be late.
    assert re.match(r"\d of 3 workers did not start within 6 s in the caller's placement", text)
    wait_until(lambda: not groups())


def test_ctrl_c_in_the_driver_leaves_nothing_behind(cluster: Any) -> None:
    program = f"""
import os, sys, time
import ray
from horovod.ray import RayExecutor
ray.init(address={cluster.address!r}, log_to_driver=False)
def hang():
    time.sleep(1000)
with RayExecutor(num_workers=2) as executor:
    print(*executor.run(os.getpid), flush=True)
    executor.run(hang)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 2
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=PATIENCE_S)
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not any(is_running(pid) for pid in pids) and not groups())


def test_arguments_that_contradict_one_another() -> None:
    with pytest.raises(ValueError, match="Both `min_workers` and `num_workers` provided"):
        RayExecutor(settings(), num_workers=2, min_workers=1)
    with pytest.raises(ValueError, match="max_workers=2 needs min_workers"):
        RayExecutor(settings(), max_workers=2)
    with pytest.raises(ValueError, match="give num_workers, or num_hosts"):
        RayExecutor(settings())
    with pytest.raises(ValueError, match="both given"):
        RayExecutor(settings(), num_workers=2, num_hosts=1)
    with pytest.raises(ValueError, match="needs use_gpu=True"):
        RayExecutor(settings(), num_workers=2, gpus_per_worker=1)
    with pytest.raises(ValueError, match="must be at least 1"):
        RayExecutor(settings(), num_workers=2, use_gpu=True, gpus_per_worker=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": -1}, "num_workers=-1 must be a whole number, at least 1"),
        ({"num_workers": 0}, "num_workers=0 must be a whole number"),
        ({"num_workers": 1.5}, "num_workers=1.5 must be a whole number"),
        ({"num_workers": True}, "num_workers=True must be a whole number"),
        ({"num_hosts": 0}, "num_hosts=0 must be a whole number"),
        ({"num_hosts": 1, "num_workers_per_host": 0}, "num_workers_per_host=0 must be"),
        ({"min_workers": 0}, "min_workers=0 must be"),
        ({"min_workers": 2, "max_workers": 1}, "max_workers 1 is less than min_workers 2"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker=0 must be more than 0"),
        ({"num_workers": 1, "cpus_per_worker": None}, "cpus_per_worker=None must be more than"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker=-1 must be more than 0"),
    ],
)
def test_numbers_that_are_too_small_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RayExecutor(settings(), **arguments)


def test_workers_with_gpus_need_no_cpus() -> None:
    RayExecutor(settings(), num_workers=1, cpus_per_worker=0, use_gpu=True)


def test_words_of_earlier_versions() -> None:
    with pytest.warns(DeprecationWarning, match="num_slots is called num_workers_per_host now"):
        executor = RayExecutor(settings(verbose=True), num_hosts=2, num_slots=3)
    assert executor.num_workers == 6
    with pytest.warns(DeprecationWarning, match="Ray starts the workers"):
        settings(ssh_str="key")


def test_a_worker_class_can_be_used_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "SOME_NUMBER"):
        monkeypatch.setenv(name, "")
    worker = BaseHorovodWorker(1, 3)
    worker.update_env_vars({"SOME_NUMBER": 1123123})
    assert worker.env_vars()["SOME_NUMBER"] == "1123123"
    worker.start_executable(dict, executable_kwargs={"a": 1})
    assert worker.execute(lambda executable: executable["a"]) == 1


def test_nodes_of_one_address_have_names_of_their_own() -> None:
    found = [Found("aaaaaaaaaa", "10.0.0.1", 1), Found("bbbbbbbbbb", "10.0.0.1", 2)]
    assert host_names(found) == ["10.0.0.1-aaaaaaaa", "10.0.0.1-bbbbbbbb"]
    assert host_names(found[:1] * 2) == ["10.0.0.1", "10.0.0.1"]
