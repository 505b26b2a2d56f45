"""tf.data's service with Horovod: compute ranks and training ranks are threads of this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

tf = pytest.importorskip("tensorflow")

import horovod.tensorflow as hvd  # noqa: E402
from horovod._rendezvous import make_secret  # noqa: E402
from horovod.data import exposure  # noqa: E402
from horovod.data.compute_service import ComputeService  # noqa: E402
from horovod.errors import StartError, UsageError  # noqa: E402
from horovod.tensorflow.data import compute_service  # noqa: E402
from horovod.tensorflow.data.compute_service import (  # noqa: E402
    TfDataServiceConfig,
    compute_worker_fn,
    tf_data_service,
)
from horovod.testing import run_ranks  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SIZE = 64
LONG_S = 60.0
HEAD_START_S = 0.5  # enough for a dispatcher that does not wait


def compute_job(dispatchers: int, side: str, train: Callable[[TfDataServiceConfig], None]) -> None:
    """Calls ``train`` while two compute ranks serve, and ends them."""
    key = make_secret()
    with ComputeService(dispatchers, 2 // dispatchers, key) as service:
        config = TfDataServiceConfig(
            dispatchers, 2 // dispatchers, side, service.addresses(), key, LONG_S, True
        )
        with ThreadPoolExecutor(1) as pool:
            computing = pool.submit(run_ranks, 2, compute_worker_fn, config)
            try:
                train(config)
            finally:
                with config.compute_client() as client:
                    client.shutdown()
            computing.result(LONG_S)


def numbers(count: int = SIZE) -> Any:
    return tf.data.Dataset.range(count).map(lambda number: number * 2)


def training_ranks(size: int, function: Callable[[int], Sequence[int]]) -> list[list[int]]:
    with ThreadPoolExecutor(size) as pool:
        return [list(found) for found in pool.map(function, range(size))]


@pytest.mark.parametrize(("mode", "times"), [("distributed_epoch", 1), ("parallel_epochs", 2)])
def test_each_training_rank_gets_what_the_mode_promises(mode: str, times: int) -> None:
    def train(config: TfDataServiceConfig) -> None:
        def read(rank: int) -> list[int]:
            dataset = numbers().send_to_data_service(config, rank, 2, processing_mode=mode)
            return [int(each) for each in dataset.map(lambda number: number + 1)]

        for found in training_ranks(2, read):
            assert sorted(found) == sorted([2 * each + 1 for each in range(SIZE)] * times)

    compute_job(1, "compute", train)


@pytest.mark.parametrize("round_robin", [False, True])
def test_ranks_may_share_the_elements_of_one_dataset(round_robin: bool) -> None:
    def train(config: TfDataServiceConfig) -> None:
        together = threading.Barrier(2)

        def read(rank: int) -> list[int]:
            dataset = numbers().repeat() if round_robin else numbers()
            dataset = dataset.send_to_data_service(
                config, rank, 2, reuse_dataset=True, round_robin=round_robin
            )
            together.wait(LONG_S)
            return [int(each) for each in dataset.take(SIZE)]

        found = training_ranks(2, read)
        if round_robin:
            assert [len(each) for each in found] == [SIZE, SIZE]
        else:
            assert sorted(found[0] + found[1]) == [2 * each for each in range(SIZE)]

    compute_job(1, "compute", train)


def test_a_dispatcher_stops_once_all_workers_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that reads an endless dataset asks its dispatcher until that answers."""
    dispatcher_stops = threading.Event()
    worker_1_stopped_before: list[bool] = []

    def stop(server: Any) -> None:
        if isinstance(server, tf.data.experimental.service.DispatchServer):
            dispatcher_stops.set()
        elif hvd.rank() == 1:
            worker_1_stopped_before.append(not dispatcher_stops.wait(HEAD_START_S))
        server._stop()

    def train(config: TfDataServiceConfig) -> None:
        dataset = numbers().repeat().send_to_data_service(config, 0)
        assert len(list(dataset.take(SIZE))) == SIZE

    monkeypatch.setattr(compute_service, "_stop", stop)
    compute_job(1, "compute", train)
    assert worker_1_stopped_before == [True]


def test_each_rank_may_have_a_dispatcher_of_its_own_on_the_side_of_the_training_job() -> None:
    def train(config: TfDataServiceConfig) -> None:
        def read(rank: int) -> list[int]:
            with tf_data_service(config, rank) as address:
                assert address.startswith("grpc://")
                distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
                return [int(each) for each in numbers().apply(distribute)]

        for found in training_ranks(2, read):
            assert sorted(found) == [2 * each for each in range(SIZE)]
        with pytest.raises(RuntimeError, match="needs dispatchers on the compute side"):
            numbers().send_to_data_service(config, 0)
        with (
            pytest.raises(IndexError, match=r"no dispatcher 2: .* has 2"),
            tf_data_service(config, 2),
        ):
            pass

    compute_job(2, "training", train)


def test_turns_need_a_shared_dataset_and_the_number_of_ranks() -> None:
    config = TfDataServiceConfig(1, 1, "compute", {}, make_secret())
    for arguments in ({"size": 2}, {"reuse_dataset": True}):
        with pytest.raises(UsageError, match="round_robin needs reuse_dataset=True and size"):
            numbers().send_to_data_service(config, 0, round_robin=True, **arguments)


def test_a_worker_without_a_dispatcher_says_so(tmp_path: Path) -> None:
    key = make_secret()
    with ComputeService(1, 1, key) as service:
        config = TfDataServiceConfig(1, 1, "training", service.addresses(), key, 1.0, True)
        with pytest.raises(TimeoutError, match="dispatcher 0 did not register"):
            run_ranks(1, compute_worker_fn, config)


@pytest.mark.parametrize("side", ["compute", "training"])
def test_servers_that_others_could_use_do_not_start(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposure, "reachable_addresses", lambda: ["192.0.2.7"])
    key = make_secret()
    with ComputeService(1, 1, key) as service:
        config = TfDataServiceConfig(1, 1, side, service.addresses(), key, LONG_S)
        refused = "anyone who can reach 192.0.2.7.*--serve-without-authentication"
        with pytest.raises(StartError, match=refused):
            compute_worker_fn(config)
        if side == "training":
            with pytest.raises(StartError, match=refused), tf_data_service(config, 0):
                pass
