"""A rank that may be slow, alone or in an elastic job; run by test_slow_worker.py.

Arguments: how the slow one is slow (sleep: its steps take longer; stop: it is stopped most of the
time; a directory: the cgroup whose quota it has), which rank (or which worker, by its number in an
elastic job), and until when to train: a number of steps; a file that ends it; "change" for some
steps after a change of the ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import horovod._rank.reports.wait
from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod.common.elastic import ObjectState

STEP_S = 0.01
MOST_STEPS = 3000

# Stopped for 60 of 80 ms. Ends with its parent.
STOP = """
import os, signal, sys, time
pid = int(sys.argv[1])
print(flush=True)
while os.getppid() == pid:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.06)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.02)
"""


def compute(seconds: float) -> None:
    """Keeps a core busy for so long."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def throttle(how: str) -> None:
    """Makes this process slow."""
    if how == "stop":
        command = [sys.executable, "-S", "-c", STOP, str(os.getpid())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        process.stdout.readline()  # it has begun; on a busy machine that takes as long as the test
    elif how != "sleep":
        (Path(how) / "cgroup.procs").write_text(str(os.getpid()))


def take_step(how: str, *, slow: bool) -> None:
    """One step, without what the ranks do together."""
    if how in ("sleep", "stop"):
        time.sleep(4 * STEP_S if slow and how == "sleep" else STEP_S)
    else:
        compute(STEP_S / 5)


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


def trained_enough(end: str, step: int) -> bool:
    """Whether that many steps were done, or the file is there; the same on all ranks."""
    if end.isdigit():
        return step >= int(end)
    return step >= MOST_STEPS or (step % 5 == 0 and bool(broadcast_object(os.path.exists(end))))


def train_alone(how: str, number: str, end: str) -> None:
    """In a job whose ranks stay."""
    group = context.global_group()
    slow = group.rank == int(number)
    if slow:
        throttle(how)
    step = 0
    while not trained_enough(end, step):
        take_step(how, slow=slow)
        group.barrier().wait()
        step += 1


def train_in_generations(how: str, number: str, end: str) -> None:
    """In a job whose workers may change."""
    state = ObjectState(broadcast_object, lambda: context.global_group().rank, step=0, changes=0)
    slow = os.environ["HOROVOD_WORKER_ID"].endswith(f"-{number}")

    def is_over(state: Any) -> bool:
        if end != "change":
            return trained_enough(end, state.step)
        return bool(state.changes >= 20) or state.step >= MOST_STEPS

    @run
    def train(state: Any) -> None:
        if slow and not state.step:
            throttle(how)
        changed = state.step > 0
        while not is_over(state):
            take_step(how, slow=slow)
            context.global_group().barrier().wait()
            state.step += 1
            state.changes += changed
            if state.step % 5 == 0:
                state.commit()

    train(state)
    ended = os.environ["HOROVOD_WORKER_ID"], context.global_group().size, state.step < MOST_STEPS
    print(f"worker {ended[0]} ends well with {ended[1]} ranks: {ended[2]}", flush=True)


def main() -> None:
    how, number, end = sys.argv[1:]
    horovod._rank.reports.wait.INTERVAL_S = 0.2
    context.init()
    if "HOROVOD_ELASTIC" in os.environ:
        train_in_generations(how, number, end)
    else:
        train_alone(how, number, end)
    context.shutdown()


if __name__ == "__main__":
    main()
