"""The device on which a rank trains."""

from __future__ import annotations

import torch

import horovod.torch as hvd
from horovod.spark.common.training import gpu_index


def device_of(use_gpu: bool) -> torch.device:
    """The device of this rank.

    Args:
        use_gpu: take a GPU if there is one.
    """
    if not (use_gpu and torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", gpu_index(hvd.local_rank()))
    torch.cuda.set_device(device)
    return device


def check_devices(mine: torch.device) -> None:
    """Makes sure that ranks train on devices of one kind; collective.

    Raises:
        RuntimeError: some ranks have a GPU, and others have none.
    """
    kinds = hvd.allgather_object(mine.type, name="device")
    if len(set(kinds)) > 1:
        raise RuntimeError(f"ranks 0 to {len(kinds) - 1} train on {', '.join(kinds)}: all or none")
