"""Elastic training: how long a job stands still when a worker is killed, and when one joins.

    python benchmarks/elastic.py --kills 20

One job of three workers trains; again and again a random one is killed (SIGKILL). With
``horovodrun`` the survivors go on as two, from the last commit, and take in the replacement as
soon as it is ready. ``torchrun`` ends all workers and starts them anew. Every worker writes down
when each allreduce ended, on the clock of the machine.

What is measured: *recovery*, from the signal to the first allreduce that ended without the killed
worker; *growth*, for how long the survivors' allreduces paused when the replacement came, above
the usual time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3
TIMEOUT_S = 120.0
STEP_S = 0.02

PROLOGUE = f"""
import os, sys, time
import torch
folder, step_s = sys.argv[1], {STEP_S}
marks = open(os.path.join(folder, f"{{os.getpid()}}.marks"), "a", buffering=1)
stop = os.path.join(folder, "stop")
def mark(size):
    marks.write(f"{{time.monotonic():.6f}} {{size}}\\n")
"""

PROGRAMS = {
    "horovodrun": PROLOGUE
    + """
import horovod.torch as hvd
hvd.init()
model = torch.nn.Linear(512, 512)
state = hvd.elastic.TorchState(model=model, step=0)

@hvd.elastic.run
def train(state):
    while True:
        time.sleep(step_s)
        wanted = torch.tensor([float(os.path.exists(stop))])
        ends = hvd.allreduce(wanted, name="ends", op=hvd.Sum).item() > 0
        mark(hvd.size())
        if ends:
            return
        state.step += 1
        if state.step % 10 == 0:
            state.commit()

train(state)
""",
    "torchrun": PROLOGUE
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
while True:
    time.sleep(step_s)
    wanted = torch.tensor([float(os.path.exists(stop))])
    dist.all_reduce(wanted)
    mark(dist.get_world_size())
    if wanted.item() > 0:
        break
dist.destroy_process_group()
""",
}

COMMANDS = {
    "horovodrun": [
        *("-m", "horovod.runner.cli", "-np", str(WORKERS), "--min-np", "2"),
        *("--max-np", str(WORKERS), "-H", f"localhost:{WORKERS}"),
        *("--blacklist-cooldown-range", "1", "2", sys.executable),
    ],
    "torchrun": [
        *("-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"),
        *("--local-addr", "127.0.0.1"),
        f"--nproc-per-node={WORKERS}",
    ],
}


class JobLost(Exception):
    """A job that did not survive."""


@dataclass
class Job:
    """A running job and what its workers have written down."""

    folder: Path
    process: subprocess.Popen[bytes]
    marks: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)

    def read(self) -> None:
        """Reads all marks anew."""
        for path in self.folder.glob("*.marks"):
            lines = [line.split() for line in path.read_text().splitlines(keepends=False)]
            found = [(float(line[0]), int(line[1])) for line in lines if len(line) == 2]
            self.marks[int(path.stem)] = found

    def alive(self, since_s: float) -> dict[int, list[tuple[float, int]]]:
        """The marks since a moment of the workers that were not killed."""
        self.read()
        late = {
            pid: [mark for mark in marks if mark[0] > since_s]
            for pid, marks in self.marks.items()
            if pid not in self.killed
        }
        return {pid: marks for pid, marks in late.items() if marks}

    def wait_full(self, since_s: float) -> list[int]:
        """Waits until all workers train together; returns their process ids."""
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            full = {
                pid: [mark for mark in marks if mark[1] == WORKERS]
                for pid, marks in self.alive(since_s).items()
            }
            if sum(len(marks) >= 10 for marks in full.values()) == WORKERS:
                return [pid for pid, marks in full.items() if len(marks) >= 10]
            if self.process.poll() is not None:
                raise JobLost(f"the job has ended with {self.process.returncode}")
            time.sleep(0.05)
        raise JobLost(f"the job did not come back within {TIMEOUT_S:g} s")


@contextmanager
def started(library: str) -> Iterator[Job]:
    """A job that trains until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAMS[library])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        words = [sys.executable, *COMMANDS[library], str(program), folder]
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(words, env=env, stdout=output, stderr=output)
        try:
            yield Job(Path(folder), process)
            (Path(folder) / "stop").touch()
            process.wait(TIMEOUT_S)
        except BaseException:
            print((Path(folder) / "output").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(TIMEOUT_S)


def longest_pause(marks: list[tuple[float, int]]) -> float:
    """The longest time between two allreduces of one worker, above that of a step, in seconds."""
    times = [at_s for at_s, _ in marks]
    pauses = [later - sooner for sooner, later in pairwise(times)]
    return max(pauses) - statistics.median(pauses)


def kill_one(job: Job, pids: list[int], dice: random.Random) -> tuple[float, float]:
    """Kills a worker; returns seconds of recovery and of growth, the second one nan if all died."""
    victim = dice.choice(pids)
    job.killed.add(victim)
    began_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    job.wait_full(began_s)
    alive = job.alive(began_s)
    survivors = [pid for pid in pids if pid in alive]
    smaller = [at_s for pid in survivors for at_s, size in alive[pid] if size < WORKERS]
    if not smaller:  # nobody trained before all were back
        new = [at_s for pid, marks in alive.items() if pid not in pids for at_s, _ in marks]
        return min(new) - began_s, float("nan")
    resumed_s = min(smaller)
    after = [[mark for mark in alive[pid] if mark[0] >= resumed_s] for pid in survivors]
    return resumed_s - began_s, max(longest_pause(marks) for marks in after)


def measure(library: str, kills: int, seed: int, times: dict[str, list[float]]) -> None:
    """One job in which one worker after the other is killed; adds to the times.

    Raises:
        JobLost: it did not survive.
    """
    dice = random.Random(seed)
    with started(library) as job:
        pids = job.wait_full(0.0)
        for number in range(1, kills + 1):
            time.sleep(dice.uniform(0.2, 0.7))  # anywhere between two commits
            recovery_s, growth_s = kill_one(job, pids, dice)
            times["recovery"].append(recovery_s)
            times["growth"].append(growth_s)
            print(f"{library} {number}: {recovery_s:.3f} s, {growth_s:.3f} s", file=sys.stderr)
            pids = job.wait_full(time.monotonic())


def show(results: dict[str, dict[str, list[float]]]) -> str:
    """A table of all libraries."""
    lines = ["| launcher | what | median | worst |", "| --- | --- | ---: | ---: |"]
    for library, times in results.items():
        for what, seconds in times.items():
            known = [each for each in seconds if each == each]
            if known:
                middle, worst = statistics.median(known), max(known)
                lines.append(f"| {library} | {what} | {middle:.2f} s | {worst:.2f} s |")
    return "\n".join(lines)


def main() -> None:
    """Measures all launchers, one after the other, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="workers to kill, one at a time")
    parser.add_argument("--launchers", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for all times")
    options = parser.parse_args()
    results = {name: {"recovery": [], "growth": []} for name in options.launchers}
    for name, times in results.items():
        try:
            measure(name, options.kills, options.seed, times)
        except JobLost as error:
            print(f"{name}, after {len(times['recovery'])} kills: {error}")
    if options.json:
        options.json.write_text(json.dumps(results))
    print(show(results))


if __name__ == "__main__":
    main()
