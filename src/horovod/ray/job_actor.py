"""The actor that holds the store of a job, beside its workers."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.util

from horovod._job.environment import Assignment
from horovod._job.job import open_job
from horovod._job.membership import Worker, assign_places
from horovod._settings.config import inherited_environment
from horovod.runner.starting.observed_job import check_output, check_serving
from horovod.runner.starting.requests import Watching
from horovod.runner.starting.served import served, with_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OUTPUT = "Ray has the output of the ranks: it prints it in the driver, and keeps it in its logs."
_LINES_S = 30.0
_CLOSE_S = 10.0
_TOKEN = re.compile(r"(http://\S+#)\S+")


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
        self._cleanup = ExitStack()
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._are_returned = False

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

    def show(self, watching: Watching, command: Sequence[str]) -> list[str]:
        """Let users watch the job, on this node.

        Args:
            watching: the ways that they have asked for.
            command: what the driver runs.

        Returns:
            Lines for the user, of which one may have the token of the page: not for a log.

        Raises:
            UsageError: the page cannot be served on this node.
        """
        check_serving(watching)
        serving = served(self._job, command, watching, self._say, elsewhere=OUTPUT)
        self._cleanup.enter_context(serving)
        page = watching.dashboard is not None
        num_lines = 2 * page + (watching.metrics is not None)
        with self._news:
            self._news.wait_for(lambda: len(self._lines) >= num_lines, _LINES_S)
            self._are_returned = True
            return self._lines

    def _say(self, line: str) -> None:
        with self._news:
            if not self._are_returned:
                self._lines.append(line)
                self._news.notify()
                return
        # Ray keeps this in a log that others may read. The page may be later than the wait for it.
        shown = _TOKEN.sub(r"\1…", line)
        print(f"horovod: {shown}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Let viewers see the end of the job."""
        self._cleanup.close()


def show_job(job: Any, env_vars: Mapping[str, str]) -> None:
    """Let users watch a job as variables of the environment ask for, and print where.

    Args:
        job: the :class:`JobActor`, which knows all workers.
        env_vars: those for the workers, which are stronger than those of this process.

    Raises:
        UsageError: they ask for what cannot be done.
        StartError: one makes no sense.
    """
    watching = with_variables(Watching(), {**inherited_environment(), **env_vars})
    check_output(watching)
    for line in ray.get(job.show.remote(watching, sys.argv[:100])):
        print(f"horovod: {line}", file=sys.stderr, flush=True)


def end_job(job: Any) -> None:
    """End a :class:`JobActor`, after viewers have seen the end of the job."""
    with suppress(ray.exceptions.RayError, TimeoutError):  # its node has gone, or viewers are slow
        ray.get(job.close.remote(), timeout=_CLOSE_S)
    ray.kill(job)


def host_names(found: Sequence[Found]) -> list[str]:
    """A name for the node of each worker: its address, if no other node has the same one. Pure."""
    nodes: dict[str, set[str]] = {}
    for each in found:
        nodes.setdefault(each.address, set()).add(each.node)
    return [
        each.address if len(nodes[each.address]) == 1 else f"{each.address}-{each.node[:8]}"
        for each in found
    ]
