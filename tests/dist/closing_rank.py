"""A rank of a job in which rank 1 closes descriptors that are not its own: see test_faults.py.

What code that makes a daemon does. Files of the user's then get the numbers of the closed ones.
"""

from __future__ import annotations

import os
import sys
import time

import torch

import horovod.torch as hvd


def main() -> None:
    hvd.init()
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="before")
    files: list[int] = []
    done = os.open(sys.argv[1], os.O_RDWR)  # a FIFO: "before" has ended on all ranks
    if hvd.rank() != 1:
        os.write(done, b".")
    else:
        ended = os.read(done, 1) + os.read(done, 1)
        assert ended == b".."
        numbers = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
        os.closerange(3, max(numbers) + 1)
        while not files or files[-1] < max(numbers):
            files.append(os.memfd_create("users"))
    print(f"closed {time.time()}", flush=True)
    try:
        while True:
            hvd.allreduce(torch.ones(3), name="after")
    except hvd.HorovodInternalError as error:
        text = str(error).replace("\n", " ")
        print(f"error {time.time()} {type(error).__name__}: {text}", flush=True)
    sizes = {os.fstat(file).st_size for file in files}
    print(f"written {sorted(sizes)}", flush=True)
    sys.stdout.flush()
    os._exit(3)


main()
