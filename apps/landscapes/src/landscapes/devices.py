"""Where networks compute."""

from __future__ import annotations

import torch

import horovod.torch as hvd
from landscapes.errors import LandscapesError


def device_named(wanted: str) -> torch.device:
    """Return the device of this rank for ``--device``; "auto" is a GPU if there is one.

    Call it after ``hvd.init()``. Raise LandscapesError for a GPU that is not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LandscapesError("--device cuda needs a GPU that PyTorch can use: give cpu.")
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device("cuda")
