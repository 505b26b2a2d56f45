"""A rank of a job in which one fault is planted: run by test_culprits.py on every rank.

Arguments: the name of a function below, and for "elsewhere" a file that it waits for. Comments at
the ends of lines name the lines that the messages must name. Every rank prints when the fault
begins; a rank whose operation fails prints when, and the error. Times are those of the monotonic
clock, which all processes of a host share.
"""

import array
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.group import Group
from horovod._rank.reduction import PLAIN_SUM
from horovod._train.call_site import call_site
from horovod.errors import HorovodInternalError

HANG_S = 60.0
LARGE = 16_000_000


def reduce(name: str, group: Group | None = None, num_elements: int = 4) -> None:
    values = array.array("f", [1.0]) * num_elements
    buffer = Buffer.from_array(values)
    handle = (group or context.global_group()).allreduce(
        [buffer],
        [buffer],
        PLAIN_SUM,
        name=name,
        waits_next=True,
        call_site=call_site(),
        keep=values,
    )
    handle.wait()


# Ranks that disagree, and do not catch the error.


def shapes(rank: int) -> None:
    reduce("shapes", num_elements=4 + rank)


# Ranks that wait for each other.


def skipped(rank: int) -> None:
    if rank != 1:
        reduce("loss")  # skipped: others
    reduce("accuracy")  # skipped: culprit


def extra(rank: int) -> None:
    if rank == 2:
        reduce("debug")  # extra: culprit
    reduce("loss")  # extra: others


def order(rank: int) -> None:
    if rank == 1:
        reduce("second")  # order: culprit
        reduce("first")
    else:
        reduce("first")  # order: others
        reduce("second")


def branch(rank: int) -> None:
    def train() -> None:
        reduce("gradient")  # branch: others

    def evaluate() -> None:
        reduce("metric")  # branch: culprit

    (evaluate if rank == 0 else train)()


def kind(rank: int) -> None:
    if rank == 1:
        values = array.array("f", [1.0])
        inputs = [Buffer.from_array(values)]
        here = call_site_of_caller()  # kind: culprit
        context.global_group().allgather(
            inputs, name="x", waits_next=True, call_site=here, keep=values
        ).wait(HANG_S)
    else:
        reduce("x")  # kind: others


def barrier(rank: int) -> None:
    if rank == 1:
        here = call_site_of_caller()  # barrier: culprit
        context.global_group().barrier(call_site=here).wait(HANG_S)
    else:
        reduce("loss")  # barrier: others


def sets(rank: int) -> None:
    group = context.global_group().add([0, 1])
    if rank == 1:
        reduce("inner", group)  # sets: culprit
        reduce("outer")
    else:
        reduce("outer")  # sets: others
        if rank == 0:
            reduce("inner", group)


def elsewhere(rank: int) -> None:
    """The ranks wait for each other until another thread of one of them comes."""
    if rank != 1:
        reduce("loss")
        reduce("accuracy")
        return
    thread = threading.Thread(target=late)
    thread.start()
    reduce("accuracy")
    thread.join()


def late() -> None:
    until = time.monotonic() + HANG_S
    while not os.path.exists(sys.argv[2]) and time.monotonic() < until:
        time.sleep(0.05)
    reduce("loss")


def call_site_of_caller() -> str:
    return call_site()


# Ranks that do not come.


def absent(rank: int) -> None:
    """Each rank but the first is somewhere else."""
    (others_wait, sleep, load, loop, lock, stop)[rank]()


def others_wait() -> None:
    reduce("loss")  # others


def sleep() -> None:
    time.sleep(HANG_S)  # sleep


def load() -> None:
    batches: queue.Queue[int] = queue.Queue()
    threading.Thread(target=read, args=(batches,), name="loader", daemon=True).start()
    batches.get(timeout=HANG_S)  # load


def read(batches: "queue.Queue[int]") -> None:
    time.sleep(HANG_S)  # read
    batches.put(1)


def loop() -> None:
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:  # loop
        pass  # loop


def lock() -> None:
    # A lock that is never released, taken by native code that keeps the interpreter's lock.
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # lock


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def first_sleeps(rank: int) -> None:
    (sleep if rank == 0 else others_wait)()


def first_stops(rank: int) -> None:
    (stop if rank == 0 else others_wait)()


def second_sleeps(rank: int) -> None:
    (sleep if rank == 1 else others_wait)()


def member_sleeps(rank: int) -> None:
    group = context.global_group().add([1, 2])
    if rank == 1:
        reduce("inner", group)  # member_sleeps: others
    elif rank == 2:
        sleep()
    else:
        reduce("outer")


def join(rank: int) -> None:
    if rank == 2:
        here = call_site_of_caller()  # join
        context.global_group().join(call_site=here).wait(HANG_S)
    else:
        (sleep if rank == 1 else others_wait)()


def stop_amid(rank: int) -> None:
    """The rank takes part in a large operation when it is stopped."""
    if rank != 1:
        reduce("large", num_elements=LARGE)  # stop_amid: others
        reduce("after")
        return
    group = context.global_group()
    values = array.array("f", [1.0]) * LARGE
    buffer = Buffer.from_array(values)
    num_batches = group.engine.statistics()["batches"]
    group.allreduce([buffer], [buffer], PLAIN_SUM, name="large", keep=values)
    until = time.monotonic() + HANG_S
    while group.engine.statistics()["batches"] == num_batches and time.monotonic() < until:
        pass
    stop()


# Ranks that end.


def killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    others_wait()


def first_killed(rank: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    others_wait()


def exits(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    others_wait()


def raises(rank: int) -> None:
    if rank == 1:
        raise RuntimeError("planted")  # raises
    others_wait()


def one_more(rank: int) -> None:
    if rank == 1:
        reduce("one_more")  # one_more


def one_less(rank: int) -> None:
    if rank != 1:
        reduce("last")  # one_less: others


def main(fault: str) -> None:
    context.init()
    rank = context.rank()
    for step in range(3):
        reduce(f"step{step}")
    print(f"planted {time.monotonic()}", flush=True)
    try:
        reduce("ready")  # ready
        globals()[fault](rank)
    except HorovodInternalError as error:
        words = {"kind": type(error).__name__, "text": str(error)}
        print(f"error {time.monotonic()} {json.dumps(words)}", flush=True)
        raise


main(sys.argv[1])
