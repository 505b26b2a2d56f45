"""The actor that holds the store of a job, beside its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray.util

from horovod._job.environment import Assignment
from horovod._job.job import open_job
from horovod._job.membership import Worker, assign_places

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Found:
    """A worker that has started.

    Attributes:
        node: the id of its Ray node.
        address: of this node.
        pid: of its process.
    """

    node: str
    address: str
    pid: int


class JobActor:
    """Opens the job where it runs, and gives places.

    Args:
        timeout_s: see :class:`horovod.ray.settings.MiniSettings`.
        interface: the network interface between hosts; empty for the one that leads to the store.

    Raises:
        StartError: the store cannot listen.
    """

    def __init__(self, timeout_s: float, interface: str) -> None:
        self._job = open_job(str(ray.util.get_node_ip_address()))
        self._timeout_s = timeout_s
        self._interface = interface

    def assign(self, found: Sequence[Found]) -> list[Assignment]:
        """Gives each worker a place; ranks are grouped by node.

        Returns:
            What each worker is told, in the order of ``found``.
        """
        hosts = host_names(found)
        slots = [hosts[:index].count(host) for index, host in enumerate(hosts)]
        workers = [
            Worker(self._job.new_identity(host), host, slot)
            for host, slot in zip(hosts, slots, strict=True)
        ]
        membership = assign_places(None, workers, 0)
        self._job.publish(membership)
        return [
            Assignment(
                self._job.where,
                membership.places[worker.identity],
                worker.identity,
                worker.host,
                start_timeout_s=self._timeout_s,
                network_interface=self._interface,
                slot=worker.slot,
            )
            for worker in workers
        ]


def host_names(found: Sequence[Found]) -> list[str]:
    """A name for the node of each worker: its address, if no other node has the same one. Pure."""
    nodes: dict[str, set[str]] = {}
    for each in found:
        nodes.setdefault(each.address, set()).add(each.node)
    return [
        each.address if len(nodes[each.address]) == 1 else f"{each.address}-{each.node[:8]}"
        for each in found
    ]
