"""Horovod's engine as a backend of ``torch.distributed``, for tensors on the CPU.

Importing this module registers the backend; PyTorch from 2.14 on finds it without an import.

Example:
    >>> import horovod.torch.distributed
    >>> torch.distributed.init_process_group("horovod")
    >>> model = torch.nn.parallel.DistributedDataParallel(model)
"""

from __future__ import annotations

import torch.distributed as dist

from horovod.torch.distributed.creation import create_group
from horovod.torch.distributed.process_group import ProcessGroupHorovod
from horovod.torch.distributed.work import EngineWork

__all__ = ["BACKEND", "EngineWork", "ProcessGroupHorovod", "register"]

BACKEND = "horovod"
"""The name of the backend in ``init_process_group``."""


def register() -> None:
    """Register the backend with ``torch.distributed``; do nothing if it is registered.

    PyTorch calls this function by the entry point ``torch.distributed.backends``.
    """
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu"])


register()
