"""A rank that reduces until something goes wrong: run by test_faults.py on every rank of a job.

Arguments: the fault ("kill", "stop", "raise", "exit", "exit_early", "none"), the rank that has it,
and the number of elements.
Every other rank prints the error that it got, and how long after the fault it came.
"""

import os
import re
import signal
import sys
import time

import numpy as np

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import ReduceOp, Reduction
from horovod.errors import HorovodInternalError


def shared_memory() -> set[str]:
    """The names of what this process has mapped of it; /dev/shm has those that were not removed."""
    with open("/proc/self/maps") as maps:
        return set(re.findall(r"/(?:dev/shm/|memfd:)(\S+)", maps.read()))


def main(fault: str, culprit: int, num_elements: int) -> None:
    context.init()
    group = context.global_group()
    values = np.ones(num_elements, np.float32)
    buffer = Buffer.from_array(values)

    def reduce(name: str) -> None:
        group.allreduce([buffer], [buffer], Reduction(ReduceOp.MAX), name=name, keep=values).wait(
            30
        )

    for step in range(5):
        reduce(f"step{step}")
    if group.rank == culprit and fault != "none":
        group.barrier().wait(30)
        # In the middle of an operation: submitted, but not waited for.
        if num_elements > 1:
            group.allreduce([buffer], [buffer], Reduction(ReduceOp.MAX), name="last", keep=values)
        print("shares", *shared_memory(), flush=True)
        print(f"fault {time.time()}", flush=True)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "exit":
            os._exit(0)
        if fault == "raise":
            raise RuntimeError("planted")
        return  # exit_early: the process ends well, with its operation in flight
    try:
        # In here: the fault may come before this rank has heard that all have reached it.
        group.barrier().wait(30)
        for step in range(1_000_000):
            reduce("last" if step == 0 else f"more{step}")
            if fault == "none":
                return
    except HorovodInternalError as error:
        print(f"error {time.time()} {type(error).__name__}: {error}", flush=True)
        raise


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
