"""A worker, without a framework, that counts its samples; it goes on from commits in files.

Arguments: the directory of the commits; "hold" to stop in the second epoch until it is killed or
asked to leave; "rarely" for commits between loops only.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.loop import ElasticLoop
from horovod.common.elastic import ObjectState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._train.elastic.ledger import Ledger, Share

LENGTH, BATCH_SIZE, EPOCHS = 48, 2, 3
PATIENCE_S = 90.0


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


class Indices(ElasticLoop):
    """Its batches are the indices of the samples."""

    def _check_accumulates(self, dataset: Any) -> None:
        pass

    def _length_of(self, dataset: Any) -> int:
        return len(dataset)

    def _batch_size_of(self, dataset: Any, batch_size: int | None) -> int:
        return batch_size or 1

    def _read(
        self, dataset: Any, ledger: Ledger, rank: int, size: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        for share in ledger.shares(rank, size, batch_size):
            yield share, list(share.indices[: share.samples])

    def _before_step(self, share: Share) -> None:
        pass


def hold(directory: Path) -> None:
    """Waits for a signal, when two files have been written."""
    deadline = time.monotonic() + PATIENCE_S
    while len(list(directory.glob("commit-?????????"))) < 2:
        assert time.monotonic() < deadline, "no commit was written"
        time.sleep(0.002)
    print(f"pid {os.getpid()} holds", flush=True)
    worker = context.elastic_worker()
    assert worker is not None
    while not worker.leaving:
        time.sleep(0.002)


def main() -> None:
    context.init()
    commit_every_s = 3600.0 if "rarely" in sys.argv else 0.0
    training = Indices(ObjectState(broadcast_object, context.rank), commit_every_s)
    values = training.track(times=[0] * LENGTH, done=0)
    taken = 0
    for epoch in training.epochs(EPOCHS):
        for step, indices in enumerate(training.batches(range(LENGTH), BATCH_SIZE)):
            if not taken:
                print(f"begins with {values.done}", flush=True)
            if (epoch, step) == (1, 3) and "hold" in sys.argv:
                hold(Path(sys.argv[1]))
            with training.guard():
                done = objects.allgather_object(context.global_group(), indices)
                for index in chain.from_iterable(done):
                    values.times[index] += 1
                    values.done += 1
            taken += 1
    print(f"ends with {sorted(set(values.times))} of {len(values.times)}", flush=True)


if __name__ == "__main__":
    main()
