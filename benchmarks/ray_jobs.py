"""Elastic jobs on Ray: how long the others stand still when an actor or a node is lost.

    python benchmarks/ray_jobs.py --lose actor --times 20
    python benchmarks/ray_jobs.py --lose node --times 20

A local cluster of two nodes with two CPUs each, on this machine; Ray must be installed. A job of
four workers trains without a framework, steps of 10 ms, a commit every 5 steps. Again and again

- actor: a worker is killed by SIGKILL; another one takes its place a second later;
- node: a third node comes, gets a worker, and is removed with all its processes.

What is measured: from the signal, or the beginning of the removal, to the end of the next barrier
of the others.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

TIMEOUT_S = 120.0


def train(folder: str) -> None:
    """What each rank does: it writes down when each step ended, with how many ranks."""
    from horovod._rank import context
    from horovod._train import objects
    from horovod._train.elastic.run import run
    from horovod._train.elastic.state import ObjectState

    stop = Path(folder) / "stop"

    def broadcast_object(value: Any, root_rank: int = 0) -> Any:
        return objects.broadcast_object(context.global_group(), value, root_rank)

    context.init()
    with open(Path(folder) / f"{os.getpid()}.marks", "a", buffering=1) as marks:

        @run
        def go(state: ObjectState) -> None:
            while not state.ends:
                time.sleep(0.01)
                context.global_group().barrier().wait()
                marks.write(f"{time.monotonic():.6f} {context.size()}\n")
                state.step += 1
                if state.step % 5 == 0:
                    state.ends = broadcast_object(stop.exists())
                    state.commit()

        go(ObjectState(broadcast_object, context.rank, step=0, ends=False))


class Watched:
    """A job, and the steps that its ranks take.

    Args:
        folder: where they write.
        job: runs in another thread.
    """

    def __init__(self, folder: Path, job: Future[Any]) -> None:
        self._folder = folder
        self._job = job

    def wait_for(self, size: int, since_s: float, count: int = 20) -> float:
        """Waits for steps of that many ranks; when the first of them ended."""
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s and not self._job.done():
            ends = sorted(self._steps(size, since_s))
            if len(ends) >= count:
                return ends[0]
            time.sleep(0.02)
        raise SystemExit(f"no {size} ranks train: {self._job}")

    def workers(self) -> list[int]:
        """The processes that took a step lately."""
        now_s = time.time()
        recent = (each for each in self._marks() if now_s - each.stat().st_mtime < 1.0)
        return [int(each.stem) for each in recent]

    def _marks(self) -> list[Path]:
        return list(self._folder.glob("*.marks"))

    def _steps(self, size: int, since_s: float) -> list[float]:
        words = (line.split() for path in self._marks() for line in path.read_text().splitlines())
        return [float(w[0]) for w in words if len(w) == 2 and w[1] == str(size)
                and float(w[0]) > since_s]  # fmt: skip


def lose_actors(cluster: Any, job: Watched, times: int) -> list[float]:
    """Kills a worker of four again and again; three go on."""
    chosen = random.Random(1)
    took_s = []
    for number in range(times):
        job.wait_for(4, time.monotonic())
        victim = chosen.choice(sorted(job.workers()))
        began_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        took_s.append(job.wait_for(3, began_s, 3) - began_s)
        print(f"actor {number + 1}: {took_s[-1]:.3f} s", file=sys.stderr, flush=True)
    return took_s


def lose_nodes(cluster: Any, job: Watched, times: int) -> list[float]:
    """Adds a node and removes it again and again; four go on."""
    took_s = []
    for number in range(times):
        node = cluster.add_node(num_cpus=1, node_ip_address=f"127.0.1.{number + 1}")
        job.wait_for(5, time.monotonic())
        began_s = time.monotonic()
        cluster.remove_node(node, allow_graceful=False)
        took_s.append(job.wait_for(4, began_s, 3) - began_s)
        print(f"node {number + 1}: {took_s[-1]:.3f} s", file=sys.stderr, flush=True)
    return took_s


def main() -> None:
    """Loses actors or nodes, and prints how long the others stood still."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lose", choices=["actor", "node"], default="actor")
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    # Not before: the arguments make sense without Ray, too.
    import ray
    from ray.cluster_utils import Cluster

    from horovod.ray import RayExecutor

    cluster = Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, node_ip_address="127.0.0.2")
    ray.init(address=cluster.address, log_to_driver=False)
    lose = lose_actors if options.lose == "actor" else lose_nodes
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=3, cooldown_range=(1, 1))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool, executor:
        running = pool.submit(executor.run, train, args=[folder])
        try:
            took_s = lose(cluster, Watched(Path(folder), running), options.times)
        finally:
            (Path(folder) / "stop").touch()
        running.result()
    ray.shutdown()
    cluster.shutdown()
    median_s = statistics.median(took_s)
    print(f"{options.lose}: {median_s:.2f} s median, {max(took_s):.2f} s worst of {len(took_s)}")


if __name__ == "__main__":
    main()
