"""RayExecutor in a program that reaches the cluster through Ray Client, as notebooks do."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.ray.ray_waits import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("grpc", reason="Ray Client needs grpcio, as of ray[client]")

PROGRAM = """
import sys

import ray

from horovod._rank import context
from horovod.ray import RayExecutor, ray_logger


def place():
    context.init()
    ray_logger.log({"rank": context.rank()})
    return context.rank(), context.size()


ray.init(sys.argv[1], log_to_driver=False)
for wanted in ({"num_workers": 3}, {"min_workers": 3, "max_workers": 3}):
    heard = []
    with RayExecutor(**wanted) as executor:
        places = executor.run(place, callbacks=[heard.append])
    print(sorted(places), sorted(each["rank"] for each in heard), flush=True)
with RayExecutor(num_workers=2) as executor:
    print([size for _, size in ray.get(executor.run_remote(place))], flush=True)
"""


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def client_server(cluster: Any) -> Iterator[str]:
    """What clients connect to; yields its address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "ray.util.client.server", "--mode", "legacy"]
    where = ["--host", "127.0.0.1", "--port", str(port), "--address", cluster.address]
    with subprocess.Popen(command + where, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: server.poll() is not None or answers(port))
            yield f"ray://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.mark.usefixtures("nothing_is_left")
def test_jobs_run_inside_of_the_cluster(cluster: Any) -> None:
    with client_server(cluster) as address:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    same = "[(0, 3), (1, 3), (2, 3)] [0, 1, 2]"
    assert done.stdout.splitlines() == [same, same, "[2, 2]"]
