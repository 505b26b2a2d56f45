"""A worker of a job whose membership changes; run by test_generations.py.

The store of its job comes over stdin, and its places from the store: there is no launcher and no
variable. Arguments: host, slot, and what it does in its first generation beside an allreduce:
"stays", "leaves", "works" (goes on reducing until somebody is lost), "sleeps" (and lets them wait).
"""

from __future__ import annotations

import json
import os
import queue
import sys

from horovod import _native
from horovod._job import StoreAddress
from horovod._job.worker import JoinedWorker, join
from horovod._rank import context
from horovod.errors import HorovodInternalError

LAST_GENERATION = 2
PATIENCE_S = 120.0


def total(value: int) -> int:
    """The sum over all ranks."""
    values = bytearray([value])
    buffer = _native.Buffer.from_array(values)
    group = context.global_group()
    group.allreduce([buffer], [buffer], op=1, name="total", keep=values).wait()
    return values[0]


def tell(**report: object) -> None:
    """In one line, of which the test reads one after the other."""
    print(json.dumps(report), flush=True)


def error_of_the_lost() -> str:
    """Works until another rank is lost."""
    try:
        while True:
            total(1)
    except HorovodInternalError as error:
        return str(error)


def live(worker: JoinedWorker, first: str) -> None:
    """One engine after the other, one for each generation."""
    kept: list[int] = []
    changes: queue.SimpleQueue[int] = queue.SimpleQueue()
    worker.on_change(0, changes.put)
    generation = -1
    while generation < LAST_GENERATION:
        assignment = worker.await_place(generation, PATIENCE_S)
        assert assignment.place is not None
        generation = assignment.place.generation
        context.init(job=assignment)
        kept.append(generation)
        tell(
            worker=worker.identity,
            pid=os.getpid(),
            kept=kept,
            generation=generation,
            ranks=(context.rank(), context.size(), context.local_rank(), context.local_size()),
            sums=[total(context.rank() + 1) for _ in range(3)],
        )
        if len(kept) == 1 and first == "sleeps":
            sys.stdin.read()
        if len(kept) == 1 and first == "works":
            tell(error=error_of_the_lost())
        elif len(kept) == 1 and first == "leaves":
            break
        elif generation < LAST_GENERATION:
            while changes.get(timeout=PATIENCE_S) <= generation:
                pass
        context.shutdown()
    context.shutdown()


def main() -> None:
    assert not [name for name in os.environ if name.startswith("HOROVOD_")]
    host, slot, first = sys.argv[1:]
    told = json.loads(sys.stdin.readline())
    store = StoreAddress(told["address"], told["port"], bytes.fromhex(told["secret"]))
    with join(store, host, int(slot)) as worker:
        live(worker, first)


if __name__ == "__main__":
    main()
