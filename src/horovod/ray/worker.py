"""The actor that is a rank."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
import ray.util

from horovod._job.assigned import assigned
from horovod._job.function import check_result
from horovod._settings.config import inherited_environment, set_environment
from horovod.ray import ray_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod._job.environment import Assignment

__all__ = ["BaseHorovodWorker"]


class BaseHorovodWorker:
    """The object in the process of a rank; functions that it calls take part in the job.

    Args:
        world_rank, world_size: what the variables of the environment say until it has a place.

    Attributes:
        executable: the object that lives as long as the worker; None if there is none.
        assignment: the place that it took; None before.
    """

    executable: Any = None
    assignment: Assignment | None = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self.update_env_vars({"HOROVOD_RANK": world_rank, "HOROVOD_SIZE": world_size})

    def node_id(self) -> str:
        """Return the id of the Ray node, in hexadecimal."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Return the host's own name."""
        return socket.gethostname()

    def where(self) -> tuple[str, str, int]:
        """The node, its address, and the id of this process."""
        return self.node_id(), str(ray.util.get_node_ip_address()), os.getpid()

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray gave to this worker."""
        return [str(gpu_id) for gpu_id in ray.get_gpu_ids()]

    def update_env_vars(self, env_vars: Mapping[str, object]) -> None:
        """Sets variables of the environment; values become strings."""
        set_environment({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The environment of this process."""
        return inherited_environment()

    def take_place(self, assignment: Assignment) -> None:
        """Becomes a rank.

        The secret of the job stays in the memory of this process; all else is in the environment,
        too, because scripts look there.
        """
        self.assignment = assignment
        store = assignment.store
        public = store and replace(store, secret=b"")
        variables = replace(assignment, store=public).variables()
        self.update_env_vars({name: text for name, text in variables.items() if text})

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[object] | None = None,
        executable_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """Makes the object that lives as long as this worker, if there is to be one."""
        if executable_cls is not None:
            args, kwargs = executable_args or (), executable_kwargs or {}
            self.executable = self._in_job(lambda: executable_cls(*args, **kwargs))

    def execute(self, func: Callable[[Any], object]) -> Any:
        """Calls a function with the executable.

        Raises:
            UsageError: it returned a generator, of which Ray would send the first item.
        """
        value = self._in_job(lambda: func(self.executable))
        check_result(value, "RayExecutor")
        return value

    def set_queue(self, queue: object) -> None:
        """Set the queue to which :func:`ray_logger.log` of this process sends."""
        ray_logger.configure(queue)

    def _in_job(self, func: Callable[[], Any]) -> Any:
        if self.assignment is None:
            return func()
        with assigned(self.assignment):
            return func()
