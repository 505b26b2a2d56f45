"""Tests on a real cluster of two Ray nodes: `make test-ray`. Without Ray they end at once."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.ray.ray_waits import leaving_nothing

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if importlib.util.find_spec("ray") is None:
        pytest.exit("tests/ray needs Ray: `make test-ray` installs it, and runs them", returncode=5)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs each on this machine, one of them with an address of its own.

    The first one can be taken for two hosts by a discovery of a test.
    """
    import ray
    from ray.cluster_utils import Cluster

    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray lets workers run behind all else, so other parts of CI would starve them.
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise each node starts a process for each CPU before anybody needs it, also those
        # nodes on which one of them gets all CPUs.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # By default 60 s, after which Ray Train begins anew; a busy machine may need longer.
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "240",
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "include_log_monitor": False,  # it looks for news all the time, and nobody reads them
            "resources": {"node:host-1": 1, "node:host-2": 1},
        },
    )
    cluster.add_node(num_cpus=2, node_ip_address="127.0.0.2")
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def nothing_is_left(cluster: Any) -> Iterator[None]:
    with leaving_nothing():
        yield
