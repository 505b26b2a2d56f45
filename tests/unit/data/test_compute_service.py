"""Where the servers of tf.data's service meet, without TensorFlow: threads over loopback."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from horovod._rendezvous import make_secret
from horovod.data.compute_config import TfDataServiceConfig
from horovod.data.compute_service import ComputeClient, ComputeService
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = make_secret()
LONG_S = 60.0


@pytest.fixture
def service() -> Iterator[ComputeService]:
    with ComputeService(2, 3, KEY) as service:
        yield service


@pytest.fixture
def client(service: ComputeService) -> Iterator[ComputeClient]:
    with ComputeClient(service.addresses(), KEY) as client:
        yield client


def config_of(service: ComputeService) -> TfDataServiceConfig:
    return TfDataServiceConfig(2, 3, "compute", service.addresses(), KEY, timeout=LONG_S)


@pytest.mark.parametrize(("dispatchers", "workers"), [(0, 1), (1, 0), (-1, 1)])
def test_counts_must_be_positive(dispatchers: int, workers: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ComputeService(dispatchers, workers, KEY)


@pytest.mark.parametrize("dispatcher_id", [-1, 2])
def test_every_call_refuses_a_dispatcher_that_is_not_there(
    client: ComputeClient, dispatcher_id: int
) -> None:
    for call in (
        lambda: client.register_dispatcher(dispatcher_id, "grpc://a:1"),
        lambda: client.wait_for_dispatcher_registration(dispatcher_id, 0),
        lambda: client.register_worker_for_dispatcher(dispatcher_id, 0),
        lambda: client.wait_for_dispatcher_worker_registration(dispatcher_id, 0),
    ):
        with pytest.raises(IndexError, match=f"no dispatcher {dispatcher_id}: .* has 2"):
            call()


def test_a_dispatcher_has_one_address(client: ComputeClient) -> None:
    client.register_dispatcher(0, "grpc://a:1")
    client.register_dispatcher(0, "grpc://a:1")
    with pytest.raises(ValueError, match="at grpc://a:1 already, so not at grpc://b:1"):
        client.register_dispatcher(0, "grpc://b:1")
    assert client.wait_for_dispatcher_registration(0, 0) == "grpc://a:1"


def test_who_does_not_come_is_named(client: ComputeClient) -> None:
    with pytest.raises(TimeoutError, match=r"dispatcher 1 did not register .* within 0\.01 s"):
        client.wait_for_dispatcher_registration(1, 0.01)
    with pytest.raises(TimeoutError, match="the 3 workers of dispatcher 1 did not all register"):
        client.wait_for_dispatcher_worker_registration(1, 0.01)


def test_a_worker_counts_once_and_for_its_dispatcher_only(client: ComputeClient) -> None:
    for worker in (0, 1, 1, 1):
        client.register_worker_for_dispatcher(0, worker)
    client.register_worker_for_dispatcher(1, 5)
    with pytest.raises(TimeoutError):
        client.wait_for_dispatcher_worker_registration(0, 0)
    client.register_worker_for_dispatcher(0, 2)
    client.wait_for_dispatcher_worker_registration(0, 0)
    with pytest.raises(TimeoutError):
        client.wait_for_dispatcher_worker_registration(1, 0)
    with pytest.raises(ValueError, match="has 3 workers already; worker 9 is one too many"):
        client.register_worker_for_dispatcher(0, 9)


@pytest.mark.parametrize(("dispatchers", "workers"), [(1, 32), (8, 4)])
def test_many_find_each_other(dispatchers: int, workers: int) -> None:
    def join(service: ComputeService, number: int) -> str:
        dispatcher = number // workers
        with ComputeClient(service.addresses(), KEY) as client:
            if number % workers == 0:
                client.register_dispatcher(dispatcher, f"grpc://host:{dispatcher}")
            client.register_worker_for_dispatcher(dispatcher, number)
            client.wait_for_dispatcher_worker_registration(dispatcher, LONG_S)
            return client.wait_for_dispatcher_registration(dispatcher, LONG_S)

    with ComputeService(dispatchers, workers, KEY) as service, ThreadPoolExecutor(32) as pool:
        numbers = range(dispatchers * workers)
        found = list(pool.map(lambda number: join(service, number), numbers))
    assert found == [f"grpc://host:{number // workers}" for number in numbers]


def test_a_shutdown_releases_all_that_wait(service: ComputeService, client: ComputeClient) -> None:
    with ComputeClient(service.addresses(), KEY) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait_for_dispatcher_registration, 0, LONG_S)
        client.shutdown("enough")
        client.shutdown("again")
        with pytest.raises(StartError, match=r"shut down, and dispatcher 0 did not register"):
            waiting.result(LONG_S)
    assert client.wait_for_shutdown() == "enough"


@pytest.mark.parametrize("keep_running", [False, True])
def test_the_loss_of_the_training_job_ends_the_service_unless_it_shall_stay(
    keep_running: bool,
) -> None:
    with (
        ComputeService(1, 1, KEY, keep_running=keep_running) as service,
        ComputeClient(service.addresses(), KEY) as worker,
    ):
        training = ComputeClient(service.addresses(), KEY)
        training.shut_down_when_lost("lost")
        training.close()
        with ComputeClient(service.addresses(), KEY) as later:
            if keep_running:
                later.shutdown("in the end")
        assert worker.wait_for_shutdown() == ("in the end" if keep_running else "lost")


def test_a_wrong_key_and_a_service_that_is_gone_are_told(service: ComputeService) -> None:
    config = config_of(service)
    with pytest.raises(StartError, match=r"cannot be used: it has another key\. Does"):
        replace(config, key=make_secret()).compute_client()
    service.close()
    with pytest.raises(StartError, match="cannot be used: it is not there or a firewall"):
        config.compute_client()


def test_a_worker_learns_that_the_service_was_lost(
    service: ComputeService, client: ComputeClient
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_for_shutdown)
        service.close()
        with pytest.raises(StartError, match="lost"):
            waiting.result(LONG_S)


# -- the configuration


def test_a_configuration_survives_its_dictionary(service: ComputeService) -> None:
    config = config_of(service)
    assert TfDataServiceConfig.from_dict({**config.to_dict(), "more": 1}) == config
    assert config.to_dict()["key"] == KEY.hex()


def test_a_file_is_private_and_comes_back(service: ComputeService, tmp_path: Path) -> None:
    config, path = config_of(service), tmp_path / "compute.json"
    config.write(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TfDataServiceConfig.read(str(path)) == config
    assert os.listdir(tmp_path) == ["compute.json"]


def test_a_file_is_waited_for(service: ComputeService, tmp_path: Path) -> None:
    config, path = config_of(service), str(tmp_path / "compute.json")
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(path)
    with pytest.raises(TimeoutError, match=r"no compute job wrote .*compute\.json within 0 s"):
        TfDataServiceConfig.read(path, wait_for_file_creation=True, timeout=0)
    writer = threading.Thread(target=config.write, args=(path,))
    writer.start()
    assert TfDataServiceConfig.read(path, wait_for_file_creation=True) == config
    writer.join()


def test_only_the_own_file_is_removed(service: ComputeService, tmp_path: Path) -> None:
    config, path = config_of(service), tmp_path / "compute.json"
    replace(config, key=make_secret()).write(str(path))
    config.remove(str(path))
    assert path.exists()
    config.write(str(path))
    config.remove(str(path))
    config.remove(str(path))
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": "xyz", "addresses": {}}'])
def test_a_file_with_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "compute.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=r"compute\.json"):
        TfDataServiceConfig.read(str(path))


def test_a_side_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="'gpu', but must be one of training, compute"):
        TfDataServiceConfig(1, 1, "gpu", {}, KEY)


def test_a_configuration_that_others_may_have_written_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "compute.json"
    TfDataServiceConfig(1, 1, "compute", {}, KEY).write(str(path))
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="it is a symbolic link"):
        TfDataServiceConfig.read(str(link))
    path.chmod(0o644)
    with pytest.raises(UsageError, match=r"mode 0644\): chmod it to 0600"):
        TfDataServiceConfig.read(str(path))
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 12345, -1)
        with pytest.raises(UsageError, match="belongs to user 12345, not to user 0"):
            TfDataServiceConfig.read(str(path))
