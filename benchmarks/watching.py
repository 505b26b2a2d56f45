"""The processor time that viewers of a job cost the launcher; the ranks are simulated.

python benchmarks/watching.py --ranks 64 --seconds 20

Ranks are connections of another process, which write the reports that real ones would write. The
store and the stream are those of a real launcher; a viewer reads all views in a third process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._job.job import open_job
from horovod._job.membership import Worker, assign_places
from horovod._rendezvous.observed import Observed, observed_key
from horovod._rendezvous.store import StoreClient
from horovod.errors import StartError
from horovod.runner.observation.client import StreamClient
from horovod.runner.observation.stream import JobStream

if TYPE_CHECKING:
    from horovod._job.job import LocalJob

_PLACES = {phase: "train.py:31 in forward" for phase in ("input", "backward", "optimizer")}


def report(port: int, secret: bytes, size: int) -> None:
    """Write the reports of all ranks, spread over each interval."""
    interval_s = max(0.5, size / 20)
    stores = [StoreClient("127.0.0.1", port, secret) for _ in range(size)]
    began = time.monotonic()
    number = 0
    with suppress(StartError):  # the launcher has ended
        while True:
            for rank, store in enumerate(stores):
                due = began + (number + rank / size) * interval_s
                time.sleep(max(0.0, due - time.monotonic()))
                now = time.monotonic()
                samples = {"backward": number * 10, "wait": number * 10}
                told = Observed(now, now / 2, 8 * number, 4 * number, 0.25, samples=samples,
                                places=_PLACES)  # fmt: skip
                store.set(observed_key(0, rank), told.to_json())
                if number % 2 == 0:  # as ranks do
                    store.wait_all(["observe/interval", "observe/command"], 0.0)
            number += 1


def read(key: str) -> None:
    """Read all views, as the page does."""
    for _ in StreamClient(key).messages():
        pass


def processor_share(job: LocalJob, size: int, seconds: float, *, is_watched: bool) -> float:
    """Return the share of a core that the launcher uses."""
    spawn = multiprocessing.get_context("spawn")
    stream = JobStream(job, ["python", "train.py"])
    with stream.using():
        ranks = spawn.Process(
            target=report, args=(job.server.endpoints[0][1], job.where.secret, size), daemon=True
        )
        viewer = spawn.Process(target=read, args=(stream.key,), daemon=True)
        if is_watched:
            ranks.start()
            viewer.start()
            time.sleep(5)
        before, began = time.process_time(), time.monotonic()
        time.sleep(seconds)
        share = (time.process_time() - before) / (time.monotonic() - began)
        for each in (ranks, viewer) if is_watched else ():
            each.terminate()
            each.join()
    return share


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for is_watched in (False, True):
        with open_job("127.0.0.1") as job:
            workers = [Worker(f"host-{rank // 8}:{rank % 8}", f"host-{rank // 8}", rank % 8)
                       for rank in range(options.ranks)]  # fmt: skip
            job.publish(assign_places(None, workers, 0))
            share = processor_share(job, options.ranks, options.seconds, is_watched=is_watched)
            what = "watched" if is_watched else "not watched"
            print(f"{options.ranks} ranks, {what}: {100 * share:.2f} % of a core")


if __name__ == "__main__":
    main()
