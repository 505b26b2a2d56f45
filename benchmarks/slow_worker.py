"""Slow workers: how soon one is named and replaced, and whether healthy ones are left alone.

    python benchmarks/slow_worker.py --how stop --runs 3
    python benchmarks/slow_worker.py --how quota
    python benchmarks/slow_worker.py --healthy-minutes 30

An elastic job of three workers trains on four slots with ``--slow-worker replace``. After a while
one worker is throttled: stopped for three quarters of the time (SIGSTOP), or by the CPU quota of a
cgroup. What is measured: the seconds until it is named, until it is replaced, and the median time
of a step before, with the slow worker, and after the change. The last must be within 10 % of the
first, or the benchmark fails.

With ``--healthy-minutes`` nobody is throttled, but other processes keep the cores busy at random
times; the benchmark fails if any worker goes. A job uses the windows of real jobs, so
a run takes about a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = 3
UNDISTURBED_S = 10.0
TIMEOUT_S = 120.0
MOST_RATIO = 1.10

PROGRAM = """
import os, sys, time
from horovod._rank import context
from horovod.common.elastic import ObjectState
from horovod._train import objects
from horovod._train.elastic.run import run

folder, computes = sys.argv[1], float(sys.argv[2])
marks = open(os.path.join(folder, f"{os.getpid()}.marks"), "a", buffering=1)
stop = os.path.join(folder, "stop")

def broadcast_object(value, root_rank=0):
    return objects.broadcast_object(context.global_group(), value, root_rank)

def work():
    until_s = time.thread_time() + computes
    while time.thread_time() < until_s:
        pass
    time.sleep(0.05 - computes)

context.init()
state = ObjectState(broadcast_object, lambda: context.global_group().rank, step=0, ends=False)

@run
def train(state):
    while not state.ends:
        work()
        context.global_group().barrier().wait()
        marks.write(f"{time.monotonic():.6f}\\n")
        state.step += 1
        if state.step % 5 == 0:
            state.ends = broadcast_object(os.path.exists(stop))
            state.commit()

train(state)
"""


@dataclass
class Job:
    """A running job, what its launcher has said and when, and the ends of its workers' steps."""

    folder: Path
    process: subprocess.Popen[str]
    said: list[tuple[float, str]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        """Reads the lines of the launcher until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.news:
                self.said.append((time.monotonic(), line.rstrip()))
                self.news.notify_all()

    def when(self, pattern: str) -> float:
        """When a line of the launcher matched; waits for one."""
        found: list[float] = []

        def matches() -> bool:
            found[:] = [at_s for at_s, line in self.said if re.search(pattern, line)]
            return bool(found) or self.process.poll() is not None

        with self.news:
            self.news.wait_for(matches, TIMEOUT_S)
        if not found:
            raise SystemExit(f"nobody said {pattern!r}: {[line for _, line in self.said]}")
        return found[0]

    def ends_of_steps(self) -> dict[int, list[float]]:
        """Of each worker, by process id."""
        return {
            int(path.stem): [float(line) for line in path.read_text().split()]
            for path in self.folder.glob("*.marks")
        }

    def step_s(self, from_s: float, to_s: float) -> float:
        """The median time of a step of those workers that trained all the while."""
        steps = []
        for ends in self.ends_of_steps().values():
            within = [at_s for at_s in ends if from_s <= at_s <= to_s]
            steps += [b - a for a, b in itertools.pairwise(within)]
        return statistics.median(steps)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Fails if that takes too long."""
        until_s = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > until_s or self.process.poll() is not None:
                raise SystemExit(f"the job does not train: {[line for _, line in self.said]}")
            time.sleep(0.1)


@contextlib.contextmanager
def started(mode: str, computes_s: float) -> Iterator[Job]:
    """A job that trains until the end of the block, and then ends well."""
    with tempfile.TemporaryDirectory() as name:
        words = ["-np", str(WORKERS), "--min-np", "2", "--max-np", str(WORKERS)]
        words += ["-H", f"localhost:{WORKERS + 1}", "--slow-worker", mode]
        program = [sys.executable, "-c", PROGRAM, name, str(computes_s)]
        command = [sys.executable, "-m", "horovod.runner.cli", *words, *program]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        job = Job(Path(name), process)
        reader = threading.Thread(target=job.listen)
        reader.start()
        try:
            job.wait_until(lambda: sum(len(each) > 5 for each in job.ends_of_steps().values()) == 3)
            yield job
            (job.folder / "stop").touch()
            if process.wait(TIMEOUT_S):
                raise SystemExit(f"the job failed: {[line for _, line in job.said]}")
        finally:
            process.terminate()
            process.wait()
            reader.join()


@contextlib.contextmanager
def stopped_mostly(pid: int) -> Iterator[None]:
    """A process that is stopped for 75 of 100 ms."""
    over = threading.Event()

    def work() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.075)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.025)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def with_quota(pid: int) -> Iterator[None]:
    """A process with a tenth of a core."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = (root if unified else root / "cpu") / f"horovod-benchmark-{os.getpid()}"
    group.mkdir()
    try:
        if unified:
            (group / "cpu.max").write_text("1000 10000")
        else:
            (group / "cpu.cfs_period_us").write_text("10000")
            (group / "cpu.cfs_quota_us").write_text("1000")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        until_s = time.monotonic() + TIMEOUT_S
        while group.exists() and time.monotonic() < until_s:
            try:
                group.rmdir()
            except OSError:  # the process has not ended yet
                time.sleep(0.1)


def replace_one(how: str, rng: random.Random) -> float:
    """Throttles a random worker of a job; prints what followed; returns after / before."""
    throttled = stopped_mostly if how == "stop" else with_quota
    with started("replace", 0.006 if how == "quota" else 0.0) as job:
        began_s = time.monotonic()
        time.sleep(UNDISTURBED_S)
        throttled_s = time.monotonic()
        with throttled(rng.choice(sorted(job.ends_of_steps()))):
            named_s = job.when("makes the others wait")
            changed_s = job.when("generation 1 runs")
            time.sleep(UNDISTURBED_S)
            before = job.step_s(began_s, throttled_s)
            slow = job.step_s(throttled_s, named_s)
            after = job.step_s(changed_s, time.monotonic())
    print(
        f"{how}: named after {named_s - throttled_s:.1f} s, replaced after "
        f"{changed_s - throttled_s:.1f} s; a step took {1000 * before:.1f} ms before, "
        f"{1000 * slow:.1f} ms with the slow worker, {1000 * after:.1f} ms after the change",
        flush=True,
    )
    return after / before


@contextlib.contextmanager
def background_load(rng: random.Random, processes: int = 2) -> Iterator[None]:
    """Processes that compute for up to 2 s, and then rest for up to 10 s, again and again."""
    code = (
        "import random, sys, time\nrng = random.Random(sys.argv[1])\nwhile True:\n"
        "    until = time.monotonic() + rng.uniform(0, 2)\n"
        "    while time.monotonic() < until: pass\n    time.sleep(rng.uniform(0, 10))"
    )
    each = [
        subprocess.Popen([sys.executable, "-S", "-c", code, str(rng.random())])
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in each:
            process.kill()
            process.wait()


def stay_healthy(minutes: float, rng: random.Random) -> int:
    """Trains beside other load; returns how many workers were named."""
    with started("replace", 0.002) as job, background_load(rng):
        until_s = time.monotonic() + 60 * minutes
        while time.monotonic() < until_s and job.process.poll() is None:
            time.sleep(1.0)
    named = sum("makes the others wait" in line for _, line in job.said)
    changes = sum("generation" in line and "ranks:" in line for _, line in job.said)
    print(f"{minutes:g} minutes beside other load: {named} named, {changes} changes")
    return named + changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=["stop", "quota"], default="stop")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--healthy-minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    if options.healthy_minutes:
        sys.exit(bool(stay_healthy(options.healthy_minutes, rng)))
    ratios = [replace_one(options.how, rng) for _ in range(options.runs)]
    sys.exit(max(ratios) > MOST_RATIO)


if __name__ == "__main__":
    main()
