"""A worker of an elastic job of horovodrun, without a framework: it counts steps.

It prints a line whenever its place changes, and trains until rank 0 sees the file of its first
argument. If AWAITED names a file, it waits for that before it trains. As soon as rank 0 sees the
file that LAST_STEP names, the next step is the last one; once there is the one that QUITS names,
rank 1 removes it and ends with exit code 0 in the middle.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod.common.elastic import ObjectState

PATIENCE_S = 90.0


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


@run
def train(state: ObjectState) -> None:
    rank, size = os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]
    print(f"rank {rank} of {size} is {os.getpid()} at {state.step}", flush=True)
    files = sys.argv[1], os.environ.get("LAST_STEP", "")
    while True:
        is_over, is_last = broadcast_object([os.path.exists(name) for name in files])
        if is_over:
            return
        time.sleep(0.01)
        state.step += 1
        if rank == "1" and os.path.exists(quits := os.environ.get("QUITS", "")):
            os.unlink(quits)  # or the next rank 1 might still see it
            sys.exit()
        if is_last:
            print("is in its last step", flush=True)
            await_file(sys.argv[1])
            return
        state.commit()


def await_file(name: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(name):
        assert time.monotonic() < deadline, f"there is no {name}"
        time.sleep(0.01)


def main() -> None:
    context.init()
    if awaited := os.environ.get("AWAITED"):
        print("loads", flush=True)
        await_file(awaited)
    state = ObjectState(broadcast_object, lambda: context.global_group().rank, step=0)
    train(state)
    print(f"ends after {state.step > 0} with {os.environ['HOROVOD_SIZE']}", flush=True)


if __name__ == "__main__":
    main()
