"""A rank whose process groups find each other by env://: run by test_env_method.py.

The first argument says when Horovod is initialized: "never" or "first"; backends follow. "loses R"
is an elastic job that loses rank R in its first generation, in an operation of the backend that
follows.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import horovod.torch as hvd
import horovod.torch.distributed  # noqa: F401

PATIENCE = timedelta(seconds=90)


def tell(line: str) -> None:
    """In one piece: the lines of several ranks share a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def make_group(backend: str) -> None:
    """Make the group of all ranks, reduce in it, and print what came of it."""
    dist.init_process_group(backend, timeout=PATIENCE)
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    local = f"{os.environ['LOCAL_RANK']}/{os.environ['LOCAL_WORLD_SIZE']}"
    place = f"rank {dist.get_rank()}/{dist.get_world_size()} local {local}"
    tell(f"{place} {backend} {total[0]:g}")


def make_groups(*backends: str) -> None:
    for backend in backends:
        make_group(backend)
        dist.destroy_process_group()
        if hvd.is_initialized():
            hvd.barrier()  # the next group must not meet at the store of this one


class State(hvd.elastic.TorchState):
    ports: list[str]


@hvd.elastic.run
def train(state: State, lost: int, backend: str) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    make_group(backend)
    state.ports = [*state.ports, os.environ["MASTER_PORT"]]
    state.commit()
    assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
    if hvd.elastic.generation() == 0:
        if hvd.rank() == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        if backend == "horovod":
            dist.all_reduce(torch.ones(1))
        else:
            hvd.allreduce(torch.ones(1))
        raise AssertionError(f"rank {lost} still reduces")
    assert len(set(state.ports)) == len(state.ports) == 2
    dist.destroy_process_group()


def main(when: str, *words: str) -> None:
    if when != "never":
        hvd.init()
    if when == "loses":
        lost, backend = words
        train(State(ports=[]), int(lost), backend)
    else:
        make_groups(*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
