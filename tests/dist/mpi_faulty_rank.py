"""One rank of test_mpi.py: something goes wrong while MPI moves the data.

Every rank prints what it met, and how long after its last operation began.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod.errors import HorovodInternalError, StartError

if TYPE_CHECKING:
    from horovod._rank.group import Group

VICTIM = 1
ROUNDS = 12
SURVIVORS_S = 20.0


def add(group: Group, values: np.ndarray, name: str) -> None:
    buffer = _native.Buffer.from_array(values)
    group.allreduce([buffer], [buffer], PLAIN_SUM, name=name, keep=values).wait()


def say(*words: object) -> None:
    """Also into a file: mpirun mixes what ranks print, and may lose it once a rank is dead."""
    line = "@" + " ".join(map(str, words)) + "\n"
    if directory := os.environ.get("RECORDS"):
        with open(os.path.join(directory, f"{os.getpid()}.txt"), "a") as own:
            own.write(line)
    sys.stdout.write(line)
    sys.stdout.flush()


def work_until_it_fails(fault: str) -> None:
    group = context.global_group()
    values = np.zeros(1_000_000, np.float32)
    began_s = time.monotonic()
    try:
        for number in range(10**9):
            if group.rank == VICTIM and number == ROUNDS:
                if fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("this rank gives up")
            began_s = time.monotonic()
            add(group, values, f"x{number % 3}")
    except HorovodInternalError as error:
        took_s = time.monotonic() - began_s
        say("error", group.rank, f"{took_s:.2f}", type(error).__name__, error)


def begin_again() -> None:
    context.shutdown()
    try:
        context.init()
    except StartError as error:
        say("again", error)
    else:
        say("again fine")


def die_unseen() -> None:
    """Goes on in a child, whose death mpirun does not see: it would end the others at once."""
    child = os.fork()
    if child == 0:
        return
    os.waitpid(child, 0)
    until_s = time.monotonic() + SURVIVORS_S
    while time.monotonic() < until_s and records().count("@again") < 2:
        time.sleep(0.05)
    os._exit(0)


def records() -> str:
    return "".join(path.read_text() for path in Path(os.environ["RECORDS"]).glob("*.txt"))


def main() -> None:
    fault = sys.argv[1]
    if fault == "kill" and os.environ.get("PMI_RANK") == str(VICTIM):
        die_unseen()
    try:
        context.init()
    except StartError as error:
        say("start", error)
        return
    if fault == "none":
        say("threads", context.mpi_threads_supported())
        return
    if fault == "reinit":
        for _ in range(3):
            context.shutdown()
            context.init()
            values = np.ones(100_000, np.float32)
            add(context.global_group(), values, "x")
            say("sum", values[0])
        return
    work_until_it_fails(fault)
    if fault == "kill":
        begin_again()


if __name__ == "__main__":
    main()
