"""A rank that saves when it is interrupted, or told to end: run by test_interrupts.py.

Arguments: the file in which rank 0 saves, its megabytes, and for how many seconds rank 0 writes it.
Rank 0 waits for an operation that never comes; the other ranks end at once when the signal comes,
without a word to it, which is the worst that they can do.
"""

import os
import signal
import sys
import time
from types import FrameType

import numpy as np

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import ReduceOp, Reduction

NUM_PARTS = 20


def save(path: str, num_megabytes: float, seconds: float) -> None:
    part = b"x" * int(num_megabytes * 1e6 / NUM_PARTS)
    with open(path, "wb") as file:
        for _ in range(NUM_PARTS):
            file.write(part)
            time.sleep(seconds / NUM_PARTS)
    print("saved", flush=True)


def main(path: str, num_megabytes: float, seconds: float) -> None:
    context.init()
    group = context.global_group()

    def on_term(signum: int, frame: FrameType | None) -> None:
        if group.rank != 0:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        save(path, num_megabytes, seconds)
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_term)
    values = np.ones(10, np.float32)
    buffer = Buffer.from_array(values)
    try:
        print("ready", flush=True)
        while group.rank != 0:
            time.sleep(0.1)  # not for long: a sleep does not see a signal that came just before it
        group.allreduce(
            [buffer], [buffer], Reduction(ReduceOp.MAX), name="never", keep=values
        ).wait()
    except KeyboardInterrupt:
        if group.rank != 0:
            os._exit(1)
        save(path, num_megabytes, seconds)


main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
