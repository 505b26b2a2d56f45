"""The tasks of Spark: each one lends its place to a rank.

The rank is a process of its own, below an agent (:mod:`horovod.runner.agent`), so nothing of it is
left in the worker of Spark, which takes up other tasks later. See decision 0039.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import BarrierTaskContext, SparkFiles, TaskContext

from horovod._job.membership import Worker
from horovod._rendezvous.store import StoreClient
from horovod._settings.config import inherited_environment
from horovod.runner.starting.joining import join, reached
from horovod.runner.starting.requests import JoinRequest
from horovod.spark.common.place import host_hash
from horovod.spark.task import DEVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.protocol.invitation import Invitation

_NO_PART_OF_A_NAME = re.compile(r"[^A-Za-z0-9_.]+")

SCHEMA = "task int"
"""Of what tasks return: nothing, in one column."""


@dataclass(frozen=True)
class Hosting:
    """The instructions for each task.

    Attributes:
        invitation: leads to the store of the job.
        env: variables of the rank, beside those of the worker of Spark; None removes one.
        executable: the Python that runs the rank; empty for the one of the task.
        is_elastic: whether the task fails with its rank, so that Spark starts it anew.
    """

    invitation: Invitation
    env: Mapping[str, str | None] = field(repr=False)
    executable: str = ""
    is_elastic: bool = False


def of_arrow(hosting: Hosting) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``DataFrame.mapInArrow``."""

    def host_rank(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        take_part(hosting)
        yield from ()

    return host_rank


def of_rows(hosting: Hosting) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``RDD.mapPartitions``."""
    return of_arrow(hosting)


def take_part(hosting: Hosting) -> None:
    """Lends this task to a rank until the job is over.

    Raises:
        StartError: the driver cannot be reached, or the rank of an elastic job has failed.
    """
    context = TaskContext.get()
    assert context is not None, "this runs in a task of Spark"
    invitation, index = hosting.invitation, context.partitionId()
    name = _name(context)
    options = JoinRequest(
        where="",
        host=name,
        slots=1,
        environ=_environment(hosting, context),
        cwd=os.getcwd(),
        python=hosting.executable or sys.executable,
        once=hosting.is_elastic,
    )
    place = {"machine": host_hash(), "index": index}
    with StoreClient(*reached(invitation), invitation.secret, purpose="launcher") as store:
        store.set(_place_key(name), json.dumps(place).encode())
    join(options, invitation, None, lambda line: print(f"horovod: {line}", file=sys.stderr))


def worker_of(store: StoreServer, name: str) -> Worker:
    """Return the worker in a task that joined under a name, with its machine."""
    place = json.loads(store.try_get(_place_key(name)) or b"{}")
    return Worker(name, place["machine"], place["index"])


def index_of(name: str) -> int:
    """The number of a task, in the name under which it joins."""
    return int(name.partition("-task")[2].partition(".")[0])


def _place_key(name: str) -> str:
    return f"spark/task/{name}"


def name_of(hostname: str, index: int, detail: str) -> str:
    """Return the name under which a task joins, which can be that of a host.

    Args:
        hostname: where the task runs.
        index: the number of the task.
        detail: what else is to be told of it.
    """
    detail = _NO_PART_OF_A_NAME.sub("-", detail).strip("-")
    return f"{hostname.replace('-task', '')}-task{index}.{detail}"


def _name(context: TaskContext) -> str:
    """The host, the task, and where its executor listens, or the number of the attempt."""
    index, detail = context.partitionId(), str(context.attemptNumber())
    if isinstance(context, BarrierTaskContext):
        detail = f"executor-{context.getTaskInfos()[index].address}"
    return name_of(socket.gethostname(), index, detail)


def _environment(hosting: Hosting, context: TaskContext) -> dict[str, str]:
    """That of the rank: of this worker of Spark, with what the user added."""
    environ = inherited_environment()
    for name, value in hosting.env.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    # Where Spark has put files that the application has added.
    root = SparkFiles.getRootDirectory()
    entries = [entry for entry in sys.path if root and entry.startswith(root)]
    entries += [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))
    gpu = context.resources().get("gpu")
    environ[DEVICES] = ",".join(gpu.addresses) if gpu is not None else ""
    return environ
