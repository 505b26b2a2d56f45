"""Horovod's engine as a backend of ``torch.distributed``, for tensors on the CPU.

Importing this module registers the backend; PyTorch from 2.14 on finds it without an import.

Example:
    >>> import horovod.torch.distributed
    >>> torch.distributed.init_process_group("horovod")
    >>> model = torch.nn.parallel.DistributedDataParallel(model)
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from horovod.errors import UnsupportedError
from horovod.torch.distributed.creation import create_group
from horovod.torch.distributed.process_group import ProcessGroupHorovod
from horovod.torch.distributed.shared_buckets import SharedMemoryState, shared_memory_hook
from horovod.torch.distributed.work import EngineWork

__all__ = [
    "BACKEND",
    "EngineWork",
    "ProcessGroupHorovod",
    "SharedMemoryState",
    "register",
    "shared_memory_hook",
]

BACKEND = "horovod"
"""The name of the backend in ``init_process_group``."""


def _is_new_enough(version: str) -> bool:
    """Whether PyTorch keeps the Python part of a Work while its C++ code waits for it."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= (2, 7)


def register() -> None:
    """Register the backend with ``torch.distributed``; do nothing if it is registered.

    PyTorch calls this function by the entry point ``torch.distributed.backends``.

    Raises:
        UnsupportedError: this PyTorch is too old.
    """
    if not _is_new_enough(torch.__version__):
        raise UnsupportedError(
            f"the backend horovod needs PyTorch 2.7 or newer, and this is {torch.__version__}, in "
            "which DistributedDataParallel waits forever for a group that is written in Python; "
            "hvd (import horovod.torch) works with it"
        )
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu"])


register()
