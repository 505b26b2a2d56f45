"""Waits for what Ray does by itself."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Ends what hangs. It limits nothing that works.
PATIENCE_S = 180.0
# Within which workers start; by default 30 s, which a busy machine may exceed.
START_S = 120.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """All that a job had is given back, and no node of another test is there any more."""
    _await_free_nodes()
    before = _listening()
    yield
    _await_free_nodes()
    wait_until(lambda: _listening() <= before)


def _listening() -> set[int]:
    """The ports at which this process listens."""
    connections = psutil.Process().net_connections("inet")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def _await_free_nodes() -> None:
    import ray

    wait_until(
        lambda: ray.cluster_resources().get("CPU") == ray.available_resources().get("CPU") == 4
    )
