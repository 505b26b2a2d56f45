"""Chaos: an elastic job whose workers are killed, stopped and sent away all the time.

    python benchmarks/elastic_chaos.py --minutes 15
    python benchmarks/elastic_chaos.py --minutes 15 --cuts

A job of ``horovodrun`` has four workers on this machine, and gets a new one for each that is lost.
On average every 5 s, by a plan that follows from ``--seed``, one of them is killed (SIGKILL), asked
to leave (SIGTERM), or stopped (SIGSTOP), some of those for a moment only, others for ever. Each of
these comes once before any comes again.

With ``--cuts`` two of the workers are on another host: a network namespace with a sshd, as in tests
of ssh. Root, iproute2 and openssh are needed. Its network is cut now and then for 1 to 8 s. Nothing
is lost in shorter cuts; longer ones cost the host its workers.

At the end the job must have exit code 0, each sample of each epoch must have been trained exactly
once, the loss must be that of an undisturbed training within its spread over orders of the samples,
and neither the launcher nor the worker that lived longest may have grown. The exit status says so.
"""

from __future__ import annotations

import argparse
import json
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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from elastic_chaos_worker import BATCH_SIZE, LENGTH, Model
from families import end_family
from uses import mapped_shared_files

from horovod._train.elastic.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

WORKERS = 4
MEAN_S = 5.0
WORKER_TIMEOUT_S = 3.0
PATIENCE_S = 120.0
# How often each kind of disturbance is chosen.
KINDS = {"kill": 5, "term": 2, "stop for a moment": 2, "stop": 1}
CUTS = {"cut": 3}
CUT_S = (1.0, 8.0)
MOMENT_S = 1.0
SAMPLE_S = 1.0
# Of a process that grows to its usual size in its first seconds.
MOST_GROWTH_BYTES = 8 << 20
MOST_GROWTH_DESCRIPTORS = 4
# The spread of some undisturbed trainings, times this, is what a disturbed one may be off.
SPREADS = 5.0

WORKER = Path(__file__).with_name("elastic_chaos_worker.py")
PLACE = re.compile(r"rank (\d+) of (\d+) in generation (\d+) is (\d+) in epoch (\d+)")


@dataclass
class Use:
    """What a process held, one number per sample."""

    resident_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


@dataclass
class Report:
    """What came of a run.

    Attributes:
        exit_code: of the job.
        seconds: until the job ended.
        disturbances: how many there were of each kind.
        result: what rank 0 told at the end; empty if it did not.
        losses: of undisturbed trainings.
        uses: of the launcher, its agent, and the worker that lived longest.
        generations: how many were seen.
        stood_s: how long training stood still at each change.
        left: processes and files that the job has left behind.
        output: what the job printed last.
    """

    exit_code: int = -1
    seconds: float = 0.0
    disturbances: dict[str, int] = field(default_factory=dict)
    result: dict[str, object] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    uses: dict[str, Use] = field(default_factory=dict)
    generations: int = 0
    stood_s: list[float] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What is not as it must be."""
        if self.exit_code or not self.result:
            return [f"the job ended with {self.exit_code}"]
        found = [f"left behind: {each}" for each in self.left]
        times, epochs = self.result["times"], self.result["epochs"]
        if times != [epochs]:
            found.append(f"samples were trained {times} times in {epochs} epochs")
        middle, spread = statistics.mean(self.losses), statistics.stdev(self.losses)
        loss = float(str(self.result["loss"]))
        if abs(loss - middle) > SPREADS * spread:
            found.append(f"the loss is {loss:g}, undisturbed {middle:g} with spread {spread:g}")
        for name, use in self.uses.items():
            first, last = _thirds(use.resident_bytes)
            if last - first > MOST_GROWTH_BYTES:
                found.append(f"{name} has grown by {last - first:g} bytes")
            before, last = _peaks(use.descriptors)
            if last - before > MOST_GROWTH_DESCRIPTORS:
                found.append(f"{name} has more and more descriptors: {use.descriptors}")
        return found

    def text(self) -> str:
        """What a reader wants to know."""
        stood = sorted(self.stood_s) or [0.0]
        lines = [
            f"{self.seconds:.0f} s, {self.generations} generations: {self.disturbances}",
            f"training stood still for {statistics.median(stood):.2f} s (median), "
            f"{stood[-1]:.2f} s (worst), {sum(stood):.1f} s in all",
            f"loss {self.result.get('loss')} after {self.result.get('epochs')} epochs; "
            f"undisturbed {min(self.losses):.8f} to {max(self.losses):.8f}",
        ]
        for name, use in self.uses.items():
            first, last = _thirds(use.resident_bytes)
            descriptors = _peaks(use.descriptors)
            lines.append(
                f"{name}: {first / 2**20:.1f} -> {last / 2**20:.1f} MiB, descriptors "
                f"{descriptors[0]} -> {descriptors[1]} ({len(use.descriptors)} samples)"
            )
        return "\n".join(lines)


def _thirds(numbers: Sequence[int]) -> tuple[float, float]:
    """The medians of the second third, and of the last one; the first one is for growing up."""
    third = max(1, len(numbers) // 3)
    return statistics.median(numbers[third : 2 * third] or numbers), statistics.median(
        numbers[-third:]
    )


def _peaks(numbers: Sequence[int]) -> tuple[int, int]:
    """The highest number before the last third, and in it.

    A number that goes up and down with the workers of the moment has no meaningful median.
    """
    third = max(1, len(numbers) // 3)
    return max(numbers[:-third] or numbers), max(numbers[-third:])


class Plan:
    """When what happens, by the seed alone; to whom depends on who is there.

    Args:
        seed: of the random numbers.
        cuts: whether the network may be cut.
    """

    def __init__(self, seed: int, *, cuts: bool) -> None:
        self._kinds = {**KINDS, **CUTS} if cuts else KINDS
        self._dice, self._victims = random.Random(seed), random.Random(seed + 1)
        self._first = self._dice.sample(list(self._kinds), len(self._kinds))

    def pause_s(self) -> float:
        """Until the next disturbance."""
        return self._dice.expovariate(1 / MEAN_S)

    def kind(self) -> str:
        """Of the next disturbance."""
        if self._first:
            return self._first.pop()
        return self._dice.choices(list(self._kinds), list(self._kinds.values()))[0]

    def victim(self, standing: Sequence[int]) -> int:
        """One of these processes."""
        return self._victims.choice(standing)

    def seconds(self, least: float, most: float) -> float:
        """How long the network is cut, or a process stopped."""
        return self._dice.uniform(least, most)


class Network:
    """Two hosts, of which the second one can be cut off.

    Attributes:
        hosts: of the job.
        environment: for its launcher.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "dist"))
        import cluster
        import ssh_hosts

        if reason := ssh_hosts.why_not():
            raise SystemExit(reason)
        self._cluster = stack.enter_context(cluster.Cluster(2))
        self._ssh = stack.enter_context(ssh_hosts.SshHosts(self._cluster, folder))
        self._entered = cluster.entered
        self.hosts = ",".join(f"{host.name}:{WORKERS // 2}" for host in self._cluster.hosts)
        self.environment = self._ssh.environment

    def entered(self) -> AbstractContextManager[None]:
        """On the host of the launcher."""
        return self._entered(self._cluster.hosts[0].namespace)

    def cut(self) -> None:
        """Takes the second host off the network."""
        self._cluster.cut(1)

    def mend(self) -> None:
        """Brings it back."""
        self._cluster.mend(1)

    def near(self) -> set[int]:
        """The processes on the host of the launcher."""
        return {each.pid for each in self._ssh.processes(0)}


class Job:
    """The job, whose output is read by a thread.

    Attributes:
        lines: what it printed.
        places: pid -> rank, size, generation and epoch, of workers that have trained.
        struck: those that were killed or told to leave, or stopped for ever.
    """

    def __init__(self, folder: Path, network: Network | None) -> None:
        self._folder = folder
        self.network = network
        self.lines: list[str] = []
        self.places: dict[int, tuple[int, int, int, int]] = {}
        self.struck: set[int] = set()
        words = [
            *("-np", str(WORKERS), "--min-np", "1", "--max-np", str(WORKERS)),
            *("-H", network.hosts if network else f"localhost:{WORKERS}"),
            *("--blacklist-cooldown-range", "1", "1"),
            *("--worker-timeout", f"{WORKER_TIMEOUT_S:g}", "--verbose"),
            *(sys.executable, str(WORKER), str(folder / "stop"), str(folder / "result")),
        ]
        few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with network.entered() if network else nullcontext():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "horovod.runner.cli", *words],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, **few, **(network.environment if network else {})},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = PLACE.search(line)
            if found is not None:
                rank, size, generation, pid, epoch = map(int, found.groups())
                self.places[pid] = rank, size, generation, epoch

    def standing(self) -> list[int]:
        """The workers that know what was trained, and were not struck."""
        known = set(self.places) - self.struck
        return sorted(pid for pid in known if psutil.pid_exists(pid))

    def wait_full(self) -> None:
        """Waits until all workers have trained."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.standing()) < WORKERS:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("\n".join(["the job does not start", *self.lines[-40:]]))
            time.sleep(0.05)

    def ends(self) -> int:
        """Lets the training end; the exit code."""
        (self._folder / "stop").touch()
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.lines.append("[chaos] the job does not end")
            return -1
        self._reader.join(PATIENCE_S)
        return code


@contextmanager
def started(folder: Path, network: Network | None) -> Iterator[Job]:
    """A job that trains, of which nothing is left behind the block."""
    job = Job(folder, network)
    try:
        yield job
    finally:
        end_family(job.process, PATIENCE_S)


class Sampler:
    """Looks at what processes hold, once in a while.

    Attributes:
        uses: by process.
        shared_files: the names in /dev/shm of what any of them had mapped.
    """

    def __init__(self) -> None:
        self.uses: dict[int, Use] = {}
        self.shared_files: set[str] = set()
        self._next_s = 0.0

    def look(self, pids: Sequence[int]) -> None:
        """Takes a sample of each process, if it is time for one."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + SAMPLE_S
        for pid in pids:
            with suppress(psutil.Error, OSError):
                process = psutil.Process(pid)
                use = self.uses.setdefault(pid, Use())
                resident, descriptors = process.memory_info().rss, process.num_fds()
                use.resident_bytes.append(resident)
                use.descriptors.append(descriptors)
                self.shared_files |= mapped_shared_files(pid)


def disturb(job: Job, seconds: float, plan: Plan, report: Report) -> Sampler:
    """Disturbs a job for a while."""
    sampler = Sampler()
    launcher = [job.process.pid, *(each.pid for each in _agents(job.process.pid))]
    until_s = time.monotonic() + seconds
    next_s = time.monotonic() + plan.pause_s()
    # The process that goes on then; 0 for the network.
    resume: list[tuple[float, int]] = []
    while time.monotonic() < until_s and job.process.poll() is None:
        sampler.look([*launcher, *job.standing()])
        now_s = time.monotonic()
        for at_s, pid in [each for each in resume if each[0] <= now_s]:
            resume.remove((at_s, pid))
            _resume(job, pid)
        stopped = {pid for _, pid in resume}
        standing = [pid for pid in job.standing() if pid not in stopped]
        # Whoever knows what was trained must not be lost with all others.
        if now_s >= next_s and 0 not in stopped and len(standing) > 1:
            next_s = now_s + plan.pause_s()
            _strike(job, plan, standing, resume, report)
        time.sleep(0.02)
    for _, pid in resume:
        _resume(job, pid)
    report.uses = {
        ("launcher", "guard", "agent")[index] if index < 3 else f"process {index}": sampler.uses[
            pid
        ]
        for index, pid in enumerate(launcher)
        if pid in sampler.uses
    }
    return sampler


def _agents(launcher: int) -> list[psutil.Process]:
    """The processes of the job that are no workers."""
    family = psutil.Process(launcher).children(recursive=True)
    return [each for each in family if str(WORKER) not in each.cmdline()]


def _strike(
    job: Job,
    plan: Plan,
    standing: Sequence[int],
    resume: list[tuple[float, int]],
    report: Report,
) -> None:
    victim, kind = plan.victim(standing), plan.kind()
    if kind == "cut" and (job.network is None or job.network.near().isdisjoint(standing)):
        return  # nobody would be left
    report.disturbances[kind] = report.disturbances.get(kind, 0) + 1
    if kind == "cut" and job.network is not None:
        seconds = plan.seconds(*CUT_S)
        job.lines.append(f"[chaos] cut for {seconds:.1f} s")
        job.network.cut()
        resume.append((time.monotonic() + seconds, 0))
        return
    number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(kind, signal.SIGSTOP)
    if kind == "stop for a moment":
        resume.append((time.monotonic() + plan.seconds(0.1, 2 * MOMENT_S), victim))
    else:
        job.struck.add(victim)
    job.lines.append(f"[chaos] {kind}: {victim}, {job.places[victim]}")
    _send(victim, number)


def _resume(job: Job, pid: int) -> None:
    if pid:
        _send(pid, signal.SIGCONT)
    elif job.network is not None:
        job.network.mend()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def undisturbed(epochs: int) -> list[float]:
    """The losses of trainings with other orders of the samples and other numbers of ranks."""
    # The number of ranks makes hardly a difference, the order does.
    return [_loss(seed, 1 + seed % WORKERS, epochs) for seed in range(1, 25)]


def _loss(seed: int, size: int, epochs: int) -> float:
    model, ledger = Model(), Ledger(LENGTH, seed=1000 * seed)
    # Where it has got to after some dozens of epochs depends on the order of the last ones only.
    for epoch in range(max(0, epochs - 50), epochs):
        ledger.begin(epoch)
        order = list(ledger.order)
        for first in range(0, LENGTH, size * BATCH_SIZE):
            model.step(model.gradients(order[first : first + size * BATCH_SIZE]))
    return model.loss()


def run(seconds: float, seed: int, *, cuts: bool) -> Report:
    """Runs a job for a while, and disturbs it."""
    report = Report()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        keys = folder / "ssh"
        keys.mkdir()
        network = Network(stack, keys) if cuts else None
        with started(folder, network) as job:
            job.wait_full()
            sampler = disturb(job, seconds, Plan(seed, cuts=cuts), report)
            report.exit_code = job.ends()
            report.output = job.lines
        result = folder / "result"
        report.result = json.loads(result.read_text()) if result.exists() else {}
    report.seconds = time.monotonic() - began_s
    report.left = [f"worker {pid}" for pid in job.places if psutil.pid_exists(pid)]
    report.left += sorted(sampler.shared_files.intersection(os.listdir("/dev/shm")))
    oldest = max(job.places, key=lambda pid: len(sampler.uses.get(pid, Use()).descriptors))
    report.uses["oldest worker"] = sampler.uses[oldest]
    report.generations = max(place[2] for place in job.places.values()) + 1
    report.stood_s = [
        float(found[1])
        for line in job.lines
        if (found := re.search(r"training stood still for ([0-9.]+) s$", line)) and "runs:" in line
    ]
    report.losses = undisturbed(int(str(report.result.get("epochs", 1))))
    return report


def main() -> int:
    """Runs, prints what came of it, and returns how many faults there were."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--cuts", action="store_true", help="two hosts, one of which is cut off")
    parser.add_argument("--json", type=Path, help="file for all that was seen")
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    report = run(60 * options.minutes, options.seed, cuts=options.cuts)
    faults = report.faults()
    if options.json:
        options.json.write_text(json.dumps({**asdict(report), "faults": faults}))
    if faults:
        print("\n".join(report.output[-200:]), file=sys.stderr)
    print("\n".join([report.text(), *faults]))
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
