"""Which nodes of a Ray cluster an elastic job may use now."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import ray

from horovod.errors import UnsupportedError
from horovod.runner.placing.discovery import HostDiscovery

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["RayHostDiscovery", "TestDiscovery"]


class RayHostDiscovery(HostDiscovery):
    """The nodes of the cluster, each with as many workers as its resources allow.

    What others use of a node counts, too. Nodes that Ray is about to drain are left out, so their
    workers leave in good order.

    Args:
        use_gpu: whether each worker needs GPUs.
        cpus_per_worker, gpus_per_worker: what it needs.
    """

    def __init__(
        self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float = 1
    ) -> None:
        self._cpus = cpus_per_worker
        self._gpus = gpus_per_worker if use_gpu else 0
        self._names: dict[str, str] = {}

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return how many workers each node may have, by its name: see :func:`name_nodes`."""
        draining = _draining()
        nodes = [node for node in ray.nodes() if node["alive"]]
        usable = [node for node in nodes if node.get("NodeID") not in draining]
        self._names = name_nodes(usable, self._names)
        found: dict[str, int] = {}
        for each in usable:
            slots = slots_of(each["Resources"], self._cpus, self._gpus)
            if slots:
                name = self._names.get(each.get("NodeID", ""), each["NodeManagerAddress"])
                found[name] = slots
        return found

    def node_of(self, host: str) -> str:
        """The id of the node that has this name; empty if none ever had it."""
        return next((node for node, name in self._names.items() if name == host), "")


class TestDiscovery(RayHostDiscovery):
    """Hides nodes and shows them again, to see what a program makes of it.

    Args:
        min_hosts, max_hosts: how many are shown.
        change_frequency_s: seconds between two changes.
        use_gpu, cpus_per_worker, gpus_per_worker: see :class:`RayHostDiscovery`.
        verbose: whether changes are printed.

    Raises:
        UnsupportedError: nodes are to be killed; hide them.
    """

    __test__ = False  # pytest

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        if not _graceful:
            raise UnsupportedError(
                "TestDiscovery(_graceful=False) killed nodes through private parts of Ray: use "
                "`ray kill-random-node`, or leave it out to hide nodes"
            )
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
        self._least, self._most = min_hosts, max_hosts
        self._interval_s = change_frequency_s
        self._changed_s = time.monotonic()
        self._verbose = verbose
        self._hidden: set[str] = set()
        self._random = random.Random()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the nodes of :class:`RayHostDiscovery`, without the hidden ones."""
        found = super().find_available_hosts_and_slots()
        if time.monotonic() >= self._changed_s + self._interval_s:
            self._changed_s = time.monotonic()
            self._change(list(found))
        shown = [name for name in found if name not in self._hidden][: self._most]
        return {name: found[name] for name in shown}

    def _change(self, hosts: list[str]) -> None:
        self._hidden &= set(hosts)
        shown = [name for name in hosts if name not in self._hidden]
        hides = len(shown) > self._least and (not self._hidden or self._random.random() < 0.5)
        if hides:
            self._hidden.add(self._random.choice(shown))
        elif self._hidden and len(shown) < self._most:
            self._hidden.remove(self._random.choice(sorted(self._hidden)))
        if self._verbose:
            hidden = ", ".join(sorted(self._hidden)) or "none"
            print(f"of the nodes {', '.join(hosts)} these are hidden: {hidden}")


def slots_of(resources: Mapping[str, float], cpus: float, gpus: float) -> int:
    """Return how many workers the resources of a node allow. Pure."""
    allowed = [int(resources.get("CPU", 0)) // cpus] if cpus else []
    allowed += [int(resources.get("GPU", 0)) // gpus] if gpus else []
    return int(min(allowed, default=resources.get("CPU", 0)))


def name_nodes(nodes: Iterable[Mapping[str, object]], before: Mapping[str, str]) -> dict[str, str]:
    """Names of nodes by their ids: its address, unless another one has, or had, the same. Pure.

    Args:
        nodes: as of ``ray.nodes()``.
        before: the names that were given so far; they stay.
    """
    names = dict(before)
    taken = set(names.values())
    for each in nodes:
        node, address = str(each.get("NodeID", "")), str(each["NodeManagerAddress"])
        if node and node not in names:
            names[node] = f"{address}-{node[:8]}" if address in taken else address
            taken.add(names[node])
    return names


def _draining() -> set[str]:
    """The ids of nodes that are about to go; Ray's own libraries ask for them in this way."""
    if not ray.is_initialized():
        return set()
    from ray._private import state

    ask = getattr(state.state, "get_draining_nodes", None)
    return set(ask()) if callable(ask) else set()
