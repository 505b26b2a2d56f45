"""A rank with a GPU that reduces until something goes wrong: run by test_gpu_training.py.

Arguments: the fault ("kill", "stop", "device", or "nccl" for one that the environment asks the fake
NCCL for), and the rank that has it. Every other rank prints the error that it got, and how long
after the fault it came.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "fakes"))

import torch
from gpu_ranks import in_this_process

import horovod.torch as hvd

_GOOD_STEPS = 2
_UNKNOWN_ERROR = 999


def main(fault: str, culprit: int) -> None:
    torch.set_num_threads(1)
    with in_this_process() as (driver, _):
        float(torch.ones(1, device="cuda")[0])  # imports for seconds; others would wait for it
        hvd.init()
        tensor = torch.ones(1000, device="cuda")
        for step in range(_GOOD_STEPS):
            assert float(hvd.allreduce(tensor, name=f"step{step}", op=hvd.Sum)[0]) == hvd.size()
        if hvd.rank() == culprit:
            hvd.barrier()
            print(f"fault {time.time()}", flush=True)
            if fault in ("kill", "stop"):
                # In the middle of it: submitted, but not waited for.
                hvd.allreduce_async(tensor, name="last", op=hvd.Sum)
                os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            if fault == "device":
                driver.fail_device(torch.cuda.current_device(), _UNKNOWN_ERROR)
        try:
            if hvd.rank() != culprit:
                # In here: the fault may come before this rank has heard that all have reached it.
                hvd.barrier()
            for step in range(1_000_000):
                name = "last" if step == 0 else f"more{step}"
                # In place: nothing but Horovod uses the device.
                hvd.allreduce_(tensor, name=name, op=hvd.Sum)
                if fault != "device":
                    torch.cuda.synchronize()  # must end, though NCCL hangs
        except hvd.HorovodInternalError as error:
            print(f"error {time.time()} {type(error).__name__}: {error}", flush=True)
            raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
