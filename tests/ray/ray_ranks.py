"""What ranks of several tests do, in a module that workers load quickly."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ray

from horovod._rank import context


def rank() -> int:
    """Takes part in the job; without a framework, which would take long to load."""
    context.init()
    return context.rank()


def who() -> dict[str, Any]:
    context.init()
    return {
        "rank": context.rank(),
        "local": (context.local_rank(), context.local_size()),
        "cross": (context.cross_rank(), context.cross_size()),
        "pid": os.getpid(),
        "node": ray.get_runtime_context().get_node_id(),
        "variables": {name: os.environ.get(f"HOROVOD_{name}") for name in ("RANK", "LOCAL_RANK")},
        "secrets": [
            name
            for name, value in os.environ.items()
            if name.startswith(("HOROVOD", "_HOROVOD")) and len(value) >= 32
        ],
    }


def dawdle(stop: str) -> int:
    """Take steps until a file is there; rank 1 takes longer than the others."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    rank = hvd.rank()
    while True:
        if rank == 1:
            time.sleep(0.1)
        ends = hvd.allreduce(torch.tensor(float(Path(stop).exists())), op=hvd.Sum, name="ends")
        hvd.step()
        if ends.item():
            hvd.shutdown()
            return rank


class Counter:
    """Lives in a worker between calls."""

    def __init__(self, first: int) -> None:
        self.value = first

    def add(self, number: int) -> int:
        self.value += number * rank()
        return self.value
