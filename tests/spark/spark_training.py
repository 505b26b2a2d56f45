"""What the ranks of the tests do, without a framework where that would take long to load."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import horovod
from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod._train.elastic.state import ObjectState
from horovod.spark.common import epoch_loop
from horovod.spark.task import get_available_devices

PATIENCE_S = 60.0
# A busy machine takes minutes to start an executor.
ELASTIC_PATIENCE_S = 300.0

_steps = itertools.count()


def who() -> dict[str, Any]:
    context.init()
    return {
        "rank": context.rank(),
        "local": (context.local_rank(), context.local_size()),
        "cross": (context.cross_rank(), context.cross_size()),
        "pid": os.getpid(),
        "python": sys.executable,
        "environ": dict(os.environ),
        "devices": get_available_devices(),
    }


def join_as_another_version() -> None:
    horovod.__version__ = "1.99.0"
    context.init()


def rank(argument: int = 0, *, more: int = 0) -> tuple[int, int]:
    context.init()
    return context.rank(), argument + more


def leave_traces() -> None:
    """Leaves what nothing else leaves: a variable and a module."""
    import zipapp

    context.init()
    os.environ["LEFT_BY_A_RANK"] = zipapp.__name__


def await_file(path: str) -> int:
    """Says where it is, and waits for a file of the test."""
    context.init()
    print("process", os.getpid(), flush=True)
    deadline = time.monotonic() + PATIENCE_S
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return context.rank()


def fail(failing: int) -> None:
    """One rank raises, and tells when; the others hang."""
    context.init()
    print("process", os.getpid(), flush=True)
    context.global_group().barrier().wait()
    if context.rank() == failing:
        raise ValueError(f"it was {time.time()}")
    time.sleep(PATIENCE_S)


def raise_error(failing: int) -> None:
    """One rank raises, and tells when; the others wait for it."""
    context.init()
    print("process", os.getpid(), flush=True)
    if context.rank() == failing:
        raise ValueError(f"it was me, at {time.time()}")
    context.global_group().barrier().wait()


def die(dying: int) -> None:
    context.init()
    if context.rank() == dying:
        os.kill(os.getpid(), signal.SIGKILL)
    context.global_group().barrier().wait()


def executor() -> psutil.Process:
    """The process of Java to which this rank belongs."""
    return next(each for each in psutil.Process().parents() if each.name() == "java")


def lose_executor(folder: Path, before: int) -> None:
    """Called before each step: rank 1 kills its executor before one of its own, once.

    Args:
        folder: for notes, the same on all ranks.
        before: the number of the step, from 0.
    """
    with (folder / "steps").open("a") as file:
        file.write(f"{os.getpid()} {context.rank()}\n")
    lost = folder / "lost"
    if next(_steps) == before and context.rank() == 1 and not lost.exists():
        lost.write_text(str(executor().pid))
        executor().kill()
        time.sleep(PATIENCE_S)  # until this process is ended, too


def note_rows(folder: Path, rows: list[float], before: int) -> None:
    """Called with the rows of each step: rank 1 loses its executor, see :func:`lose_executor`.

    Every step is committed.
    """
    epoch_loop.COMMIT_EVERY = 1
    lose_executor(folder, before)
    note = [context.generation(), context.size(), context.rank(), rows]
    with (folder / "rows").open("a") as file:
        file.write(json.dumps(note) + "\n")


def trained_rows(folder: Path) -> list[float]:
    """The rows of all steps that were not lost, in their order: those that all ranks began."""
    steps: dict[tuple[int, int], dict[int, list[list[float]]]] = {}
    for line in (folder / "rows").read_text().splitlines():
        generation, size, rank, rows = json.loads(line)
        steps.setdefault((generation, size), {}).setdefault(rank, []).append(rows)
    found: list[float] = []
    for (_, size), by_rank in sorted(steps.items()):
        if len(by_rank) == size:
            for parts in zip(*by_rank.values(), strict=False):
                found += itertools.chain.from_iterable(parts)
    return found


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


def steps(*sizes: int, killed: str = "") -> tuple[int, list[int]]:
    """Takes steps until the job had these sizes one after the other; returns rank and sizes.

    There is a commit after each step.

    Args:
        sizes: to wait for.
        killed: a file that does not exist yet: whoever makes it kills its executor.
    """
    deadline = time.monotonic() + ELASTIC_PATIENCE_S
    context.init()

    @run
    def train(state: ObjectState) -> None:
        while state.after < 3:
            assert time.monotonic() < deadline, f"the job had the sizes {state.sizes}"
            time.sleep(0.1)
            state.step += 1
            if state.sizes[-1:] != [context.size()]:
                state.sizes = [*state.sizes, context.size()]
            state.after += tuple(state.sizes[-len(sizes) :]) == sizes
            state.commit()
            if killed and state.step == 3 and context.rank() == 1 and not Path(killed).exists():
                Path(killed).touch()
                print("process", executor().pid, flush=True)
                executor().kill()

    state = ObjectState(broadcast_object, context.rank, step=0, sizes=[], after=0)
    train(state)
    return context.rank(), state.sizes
