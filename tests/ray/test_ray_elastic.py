"""Actors and nodes come and go while a job on a real cluster trains."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest
import ray
from tests.ray.elastic_training import (
    EPOCHS,
    LENGTH,
    Counter,
    Script,
    Unloadable,
    fail,
    look,
    steps,
    with_torch,
)
from tests.ray.ray_waits import START_S, is_running, wait_until

from horovod.errors import RankFailedError, UnsupportedError
from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.ray.discovery import name_nodes, slots_of
from horovod.ray.elastic import RayHostDiscovery as SlotDiscovery
from horovod.ray.elastic_actor import visible_gpus
from horovod.ray.elastic_v2 import RayHostDiscovery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_is_left")


class Heard:
    """A callback that notes what ranks tell, and acts on it."""

    def __init__(self, act: Callable[[dict[str, Any]], object] = lambda item: None) -> None:
        self.items: list[dict[str, Any]] = []
        self._act = act

    def __call__(self, item: dict[str, Any]) -> None:
        self.items.append(item)
        self._act(item)

    def of(self, what: str) -> list[dict[str, Any]]:
        return [item for item in self.items if item["what"] == what]

    @property
    def pids(self) -> set[int]:
        return {item["pid"] for item in self.items}


def settings(**kwargs: Any) -> Any:
    return RayExecutor.create_settings(**{"timeout_s": START_S, **kwargs})


def test_pytorch_trains_each_sample_once_whoever_comes_and_goes(
    cluster: Any, tmp_path: Path
) -> None:
    nodes = {3: cluster.add_node(num_cpus=2, node_ip_address="127.0.0.3")}
    script = Script(str(tmp_path), sizes={0: 3, 1: 3}, victims={0: "127.0.0.2", 2: "127.0.0.3"})

    def act(item: dict[str, Any]) -> None:
        done = tmp_path / str(item["epoch"])
        if done.exists():
            return
        match item["epoch"], item["what"], item["address"]:
            case 0, "expects a loss", "127.0.0.2":
                done.touch()
                os.kill(item["pid"], signal.SIGKILL)
            case 1, "waits", _:
                done.touch()
                nodes[4] = cluster.add_node(num_cpus=2, node_ip_address="127.0.0.4")
            case 2, "expects a loss", "127.0.0.3":
                done.touch()
                cluster.remove_node(nodes.pop(3), allow_graceful=False)

    heard = Heard()
    with (
        RayExecutor(settings(), min_workers=2, max_workers=3, cpus_per_worker=2) as executor,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(executor.run, with_torch, args=[script], callbacks=[heard])
        num_seen = 0
        while not running.done():  # only the main thread may add nodes
            wait({running}, timeout=0.05)
            for item in heard.items[num_seen:]:
                num_seen += 1
                act(item)
        results = running.result()
    for node in nodes.values():
        cluster.remove_node(node)
    assert [each["times"] for each in results] == [[float(EPOCHS)] * LENGTH] * 2
    assert {each["rank"] for each in results} == {0, 1}
    head = [item for item in heard.items if item["address"] not in ("127.0.0.2", "127.0.0.3")]
    firsts = {item["pid"] for item in head if item["epoch"] == 0}
    assert len(firsts) == 1
    assert {each["rank"] for each in results if each["pid"] in firsts} == {0}
    assert {item["address"] for item in heard.items} >= {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    wait_until(lambda: not any(map(is_running, heard.pids)))


def test_each_sample_is_trained_once_when_an_actor_is_killed_and_replaced(tmp_path: Path) -> None:
    script = Script(str(tmp_path), sizes={0: 2, 1: 2}, victims={0: "127.0.0.2"})

    def act(item: dict[str, Any]) -> None:
        done = tmp_path / str(item.get("epoch"))
        is_victim = item["what"] == "expects a loss" and item["address"] == "127.0.0.2"
        if is_victim and not done.exists():
            done.touch()
            os.kill(item["pid"], signal.SIGKILL)

    heard = Heard(act)
    with RayExecutor(
        settings(), min_workers=1, max_workers=2, cpus_per_worker=2, cooldown_range=(1, 1)
    ) as executor:
        results = executor.run(with_torch, args=[script], callbacks=[heard])
    assert [each["times"] for each in results] == [[float(EPOCHS)] * LENGTH] * 2
    (senior,) = {item["pid"] for item in heard.items if item["address"] != "127.0.0.2"}
    assert [each["pid"] for each in results if each["rank"] == 0] == [senior]


def test_ranks_are_grouped_by_node_and_survivors_stay(cluster: Any) -> None:
    killed: list[int] = []

    def act(item: dict[str, Any]) -> None:
        trains = item["what"] == "steps" and item["step"] >= 5
        if trains and (item["rank"], item["size"]) == (3, 4) and not killed:
            killed.append(item["pid"])
            os.kill(item["pid"], signal.SIGKILL)

    heard = Heard(act)
    with RayExecutor(settings(), min_workers=3, max_workers=4) as executor:
        results = executor.run(steps, args=[4, 3], callbacks=[heard])
    assert len(results) == 3
    places = {item["rank"]: item for item in heard.of("steps") if item["size"] == 4}
    addresses = [places[rank]["address"] for rank in range(4)]
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3]
    # All but the killed one keep their processes, and their ranks.
    assert [pid for _, _, pid in results] == [places[rank]["pid"] for rank in range(3)]
    assert [rank for rank, _, _ in results] == [0, 1, 2]


def test_an_executable_and_variables_are_in_each_worker() -> None:
    executor = RayExecutor(settings(), min_workers=2, max_workers=2)
    executor.start(Counter, [3], {"by": 2}, extra_env_vars={"SOME_NUMBER": 5})
    results = executor.execute(look)
    assert results == [(6, "5")] * 2
    with pytest.raises(UnsupportedError, match=r"execute_single\(\) is for jobs whose size stays"):
        executor.execute_single(lambda counter: counter.value)
    with pytest.raises(UnsupportedError, match="run_remote"):
        executor.run_remote(os.getpid)
    executor.shutdown()


def test_the_error_of_a_function_is_the_cause() -> None:
    with (
        RayExecutor(settings(), min_workers=2, max_workers=2) as executor,
        pytest.raises(RankFailedError, match=r"rank 1 on .* has failed with KeyError") as caught,
    ):
        executor.run(fail, args=[5])
    assert isinstance(caught.value.__cause__, KeyError)
    assert "number 5" in str(caught.value.__cause__)
    assert "in fail" in caught.value.traceback


def test_a_function_that_a_worker_cannot_load_is_explained() -> None:
    with (
        RayExecutor(settings(), min_workers=2, max_workers=2) as executor,
        pytest.raises(RankFailedError, match="ModuleNotFoundError: of this worker"),
    ):
        executor.run(print, args=[Unloadable()])


def test_without_room_the_wait_ends() -> None:
    with (
        RayExecutor(settings(), min_workers=9, elastic_timeout=3) as executor,
        pytest.raises(RankFailedError, match=r"only 4 of the 9 slots .* min_workers and elastic_"),
    ):
        executor.run(os.getpid)


class Hosts:
    """A discovery of hosts that exist as resources only; the test changes what it answers."""

    def __init__(self, **hosts: int) -> None:
        self.hosts = {name.replace("_", "-"): slots for name, slots in hosts.items()}

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return self.hosts


def test_old_snippets_of_elastic_executors_run() -> None:
    discovery = Hosts(host_1=1)
    settings = ElasticRayExecutor.create_settings(
        verbose=True, min_num_proc=1, max_num_proc=2, discovery=discovery
    )
    executor = ElasticRayExecutor(
        settings, use_gpu=False, cpus_per_slot=1, override_discovery=False
    )
    executor.start()
    heard = Heard(lambda item: discovery.hosts.update({"host-2": 2}))
    results = executor.run(lambda: steps(1, 2), callbacks=[heard])
    assert [rank for rank, _, _ in results] == [0, 1]
    assert len(heard.of("started")) == len(heard.of("finished")) == 2
    with pytest.warns(DeprecationWarning, match="min_np is called min_num_proc now"):
        assert ElasticRayExecutor.create_settings(min_np=3).num_proc == 3


def test_a_host_that_is_dropped_leaves_in_good_order() -> None:
    discovery = Hosts(host_1=1, host_2=1)

    def act(item: dict[str, Any]) -> None:
        if item["what"] == "steps" and item["size"] == 2:
            discovery.hosts.pop("host-2", None)

    heard = Heard(act)
    its_settings = settings()
    its_settings.discovery = discovery
    with RayExecutor(its_settings, min_workers=1, override_discovery=False) as executor:
        results = executor.run(steps, args=[2, 1], callbacks=[heard])
    assert [(rank, size) for rank, size, _ in results] == [(0, 1)]
    taken = [item["step"] for item in heard.of("steps") if item["rank"] == 0]
    assert taken == sorted(set(taken))  # nothing was repeated


def drain(cluster: Any, node: Any) -> None:
    """Tells Ray that a node will be taken away in 10 minutes, as for a spot instance."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    due_ms = int((time.time() + 600) * 1000)
    accepted, why = GcsClient(cluster.address).drain_node(node.node_id, reason, "spot", due_ms)
    assert accepted, why


def test_workers_of_a_node_that_is_drained_leave_in_good_order(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=2, node_ip_address="127.0.0.5")
    drained: list[Any] = []

    def act(item: dict[str, Any]) -> None:
        if item["what"] == "steps" and item["size"] == 3 and not drained:
            drained.append(item)
            drain(cluster, node)

    heard = Heard(act)
    with RayExecutor(settings(), min_workers=2, max_workers=3, cpus_per_worker=2) as executor:
        results = executor.run(steps, args=[3, 2], callbacks=[heard])
    cluster.remove_node(node)
    assert [size for _, size, _ in results] == [2, 2]
    assert "127.0.0.5" in {item["address"] for item in heard.items if item["size"] == 3}
    assert "127.0.0.5" not in {item["address"] for item in heard.items if item["size"] == 2}
    for _, _, pid in results:
        taken = [item["step"] for item in heard.of("steps") if item["pid"] == pid]
        assert taken == sorted(set(taken))  # nothing was repeated


def asked_of_the_autoscaler() -> list[dict[str, float]]:
    """For which bundles of resources the cluster shall have room; an autoscaler reads it there."""
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    asked: list[dict[str, float]] = json.loads(
        _internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or "[]"
    )
    return asked


def test_the_autoscaler_is_asked_for_the_most_workers() -> None:
    asked: list[list[dict[str, float]]] = []

    def act(item: dict[str, Any]) -> None:
        if not asked:
            asked.append(asked_of_the_autoscaler())

    with RayExecutor(settings(), min_workers=1, max_workers=7, cpus_per_worker=2) as executor:
        executor.run(steps, args=[2], callbacks=[act])
    assert asked == [[{"CPU": 2}] * 7]
    assert asked_of_the_autoscaler() == []


def test_slots_are_what_the_resources_of_a_node_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slots_of({"CPU": 4, "GPU": 1}, 1, 0) == 4
    assert slots_of({"CPU": 4, "GPU": 1}, 1, 1) == 1
    assert slots_of({"CPU": 4, "GPU": 4}, 1, 2) == 2
    assert slots_of({"CPU": 3.5}, 2, 0) == 1
    assert slots_of({"CPU": 8}, 1, 1) == 0

    def nodes() -> Iterator[dict[str, Any]]:
        for address, alive in (("a", True), ("b", True), ("c", False)):
            resources = {"CPU": 8, "GPU": 2}
            yield {"NodeManagerAddress": address, "Resources": resources, "alive": alive}

    monkeypatch.setattr(ray, "nodes", nodes)
    by_gpu = RayHostDiscovery(use_gpu=True, cpus_per_worker=1)
    assert by_gpu.find_available_hosts_and_slots() == {"a": 2, "b": 2}
    by_slots = SlotDiscovery(use_gpu=True, cpus_per_slot=1, gpus_per_slot=2)
    assert by_slots.find_available_hosts_and_slots() == {"a": 1, "b": 1}


def test_names_of_nodes_stay_and_are_never_given_twice() -> None:
    first = {"NodeID": "aaaaaaaaaa", "NodeManagerAddress": "10.0.0.1"}
    second = {"NodeID": "bbbbbbbbbb", "NodeManagerAddress": "10.0.0.1"}
    names = name_nodes([first], {})
    assert names == {"aaaaaaaaaa": "10.0.0.1"}
    # One that comes back after its death is another node.
    assert name_nodes([second], names) == names | {"bbbbbbbbbb": "10.0.0.1-bbbbbbbb"}


def test_the_own_gpu_stands_where_the_local_rank_looks() -> None:
    assert visible_gpus(["2"], 4, 0) == ["2", "1", "0", "3"]
    assert visible_gpus(["0"], 4, 1) == ["1", "0", "2", "3"]
    assert visible_gpus(["GPU-7"], 4, 1) == ["GPU-7"]
    assert visible_gpus([], 4, 1) == []


def test_arguments_of_elastic_executors() -> None:
    with pytest.raises(ValueError, match="max_workers 1 is less than min_workers 2"):
        RayExecutor(settings(), min_workers=2, max_workers=1)
    with pytest.raises(ValueError, match="cooldown_range"):
        RayExecutor(settings(), min_workers=2, cooldown_range=(1, 2, 3))
    with pytest.raises(ValueError, match="elastic_timeout"):
        RayExecutor(settings(), min_workers=2, elastic_timeout=0)
    executor = RayExecutor(settings(), min_workers=2, override_discovery=False)
    with pytest.raises(ValueError, match=r"override_discovery=False needs settings\.discovery"):
        executor.start()
