"""What happens to the ranks of an elastic training in tests: one dies, and perhaps comes again."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import horovod
from horovod._rank import context
from horovod.spark.common import epoch_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 120.0
# Epochs have 4 steps on 2 ranks and 8 on one; a rank dies before the third step of the second.
DIES_BEFORE = 6
# The first step of the third epoch, if all of the second is taken again by the other rank.
AWAITS_BEFORE = 15

_steps = itertools.count()


def begin(
    folder: Path, train: Callable[[Any], bytes | None], task: Any, commit_every: int
) -> bytes | None:
    """What each rank runs; one that comes after the death waits until it may."""
    epoch_loop.COMMIT_EVERY = commit_every
    if (folder / "died").exists():
        wait_until((folder / "may come").exists)
    return train(task)


def on_ranks(
    folder: Path,
    train: Callable[[Any], bytes | None],
    task: Any,
    commit_every: int,
    num_proc: int = 2,
    **options: Any,
) -> list[Any]:
    """Trains on ranks of which one may die; further options are those of ``horovod.run``."""
    return horovod.run(
        begin,
        (folder, train, task, commit_every),
        num_proc=num_proc,
        min_num_proc=1,
        hosts=f"localhost:{num_proc}",
        **options,
    )


def step(folder: Path, *, dies: int = 1, awaits: bool = False) -> None:
    """Called on each rank before each step.

    Args:
        folder: for notes, the same on all ranks.
        dies: which rank.
        awaits: whether the rank that is left waits for another one.
    """
    number = next(_steps)
    with (folder / "steps").open("a") as file:
        file.write(f"{os.getpid()} {context.rank()} {context.size()}\n")
    died = folder / "died"
    if context.rank() == dies and number == DIES_BEFORE and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    worker = context.elastic_worker()
    if awaits and number == AWAITS_BEFORE and worker is not None:
        (folder / "may come").touch()
        wait_until(lambda: worker.newest > worker.generation)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sizes_of_survivor(folder: Path) -> list[int]:
    """How many ranks each step had of the process that is rank 0 at the end."""
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    survivor = [pid for pid, rank, _ in lines if rank == "0"][-1]
    return [int(size) for pid, _, size in lines if pid == survivor]
