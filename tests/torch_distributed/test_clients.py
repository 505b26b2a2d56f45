"""Clients of torch.distributed between processes: the weights that they learn with gloo."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from clients import CLIENTS, train_all

import horovod

if TYPE_CHECKING:
    from pathlib import Path


def differences(folder: str) -> list[str]:
    """Train on both backends in one process; return the clients whose weights differ."""
    import horovod.torch.distributed

    assert horovod.torch.distributed.BACKEND == "horovod"
    torch.set_num_threads(1)
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    theirs, ours = (
        train_all(backend, rank, size, f"{folder}/{backend}") for backend in ("gloo", "horovod")
    )
    return [
        f"{name}, rank {rank}, weight {index}: {weight} instead of {expected}"
        for name in CLIENTS
        for index, (weight, expected) in enumerate(zip(ours[name], theirs[name], strict=True))
        if not torch.equal(weight, expected)
    ]


def test_weights_are_those_of_gloo(tmp_path: Path) -> None:
    assert horovod.run(differences, (str(tmp_path),), num_proc=2) == [[], []]
