"""The backends of a group for tensors that are not on the CPU, such as NCCL."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from horovod.errors import UsageError

if TYPE_CHECKING:
    from datetime import timedelta

F = TypeVar("F", bound=Callable[..., Any])


class OtherDevices:
    """The part of a group that serves other devices, made when the first such tensor comes.

    PyTorch lets a process group in Python stand for all devices, so ``"cpu:horovod,cuda:nccl"``
    makes no backend for GPUs by itself.

    Args:
        whole: the group.
        timeout: of the operations of other backends.
    """

    def __init__(self, whole: Any, timeout: timedelta) -> None:
        self._whole = whole
        self._timeout = timeout
        self._lock = threading.Lock()
        self._groups: dict[str, Any] = {}

    def group_for(self, device: torch.device) -> Any:
        """Return the group that serves a device; all members come here with their first tensor.

        Raises:
            UsageError: ``init_process_group`` named no backend for this device.
        """
        with self._lock:
            if device.type not in self._groups:
                self._groups[device.type] = self._make(device.type)
            return self._groups[device.type]

    def shutdown(self) -> None:
        """End all backends."""
        for group in self._groups.values():
            group.shutdown()

    def _make(self, device_type: str) -> Any:
        config = dist.get_backend_config(self._whole)
        backends = dict(part.split(":") for part in config.split(",") if ":" in part)
        name = backends.get(device_type, "")
        store = c10d.PrefixStore(f"{device_type}/", self._whole.get_group_store())
        place = store, self._whole.rank(), self._whole.size()
        if name == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            backend: Any = dist.ProcessGroupNCCL(*place, options)
            kind = dist.ProcessGroup.BackendType.NCCL
        elif name == "gloo":
            backend = dist.ProcessGroupGloo(*place, timeout=self._timeout)
            kind = dist.ProcessGroup.BackendType.GLOO
        else:
            raise UsageError(
                f"a tensor on {device_type} in a group with the backends {config!r}: use "
                f'tensor.cpu(), or init_process_group("cpu:horovod,{device_type}:nccl"); the '
                "backends beside horovod can be nccl and gloo"
            )
        group: Any = c10d.ProcessGroup(*place)
        group._register_backend(torch.device(device_type), kind, backend)
        group._set_default_backend(kind)
        group._set_group_name(f"{self._whole.getGroupName()}.{device_type}")
        return group


def on_cpu(method: F) -> F:
    """Wrap an operation of the group: tensors on other devices go to their own backend."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        tensor = _first_tensor(arguments)
        if tensor is None or tensor.is_cpu:
            return method(self, *arguments)
        group = self._others.group_for(tensor.device)
        return getattr(group, name)(*arguments)

    return cast("F", call)


def _first_tensor(arguments: Any) -> torch.Tensor | None:
    """Return the first tensor among arguments that may be lists of lists of tensors."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, list | tuple):
            found = _first_tensor(argument)
            if found is not None:
                return found
    return None
