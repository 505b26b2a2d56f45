"""Soak of an elastic job: many steps, with all that keeps records, in which nothing may grow.

    python benchmarks/elastic_soak.py --steps 400000 --json docs/data/elastic_soak.json

A job of ``horovodrun`` trains a small network of PyTorch on three ranks of this machine. Every
``--steps-per-change`` steps its ranks change: the youngest worker is killed (SIGKILL), asked to
leave (SIGTERM), or has no slot for a while; then a new one joins. Meanwhile the job writes a
timeline, checkpoints and logged values, prints what ``--watch`` says, and serves metrics, which are
read every 2 s.

The first changes touch memory that later ones use again:
``--changes-first`` of them come at the beginning, one after the other, and do not count.

Twice a second, whenever all ranks train, memory, descriptors, threads, shared memory and files of
the launcher, its agents and the two oldest workers are looked at, by process id. Behind a warm-up,
:mod:`slopes` fits a line to each of these numbers. The exit status is not 0 if one of them grows by
more than its error, or if the job has failed or left something behind. Files that grow by design
are measured, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from families import end_family
from slopes import LEAST_BLOCKS, Slope, fit
from uses import Use, disk_use, use_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RANKS = 3
OLDEST = 2  # so many workers are never touched
STEPS_PER_CHECKPOINT = 500
SAMPLE_S = 0.5
SCRAPE_S = 2.0
PATIENCE_S = 120.0
WARM_UP = 0.2
MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")

WORKER = Path(__file__).with_name("elastic_soak_worker.py")
# The C library returns what is freed, so that resident is what somebody holds.
RETURNS_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2",
}  # fmt: skip
STEPS_PER_COMMIT = 20  # of the worker, which commits have a checkpoint
PLACE = re.compile(r"rank (\d+) of (\d+) in generation (\d+) is (\d+) at step (\d+)")
METRICS = re.compile(r"metrics: (http://\S+/metrics)")
CHANGES = ("kill", "leave", "drop")
GROW = ("timeline", "logged")  # the beginnings of the names of files that grow by design
OF_A_PROCESS = {
    "resident_bytes": "RSS",
    "anonymous_bytes": "anonymous memory",
    "proportional_bytes": "PSS",
    "shared_bytes": "shared memory",
    "descriptors": "descriptors",
    "threads": "threads",
}


@dataclass
class Report:
    """What came of a run.

    Attributes:
        steps, seconds, generations, exit_code: of the job.
        warm_up: steps that do not count.
        changes_first: how many changes there were in the warm-up, one after the other.
        changes: how many there were of each kind behind these.
        scrapes: how often the metrics were read.
        rows: by process and number.
        growing: bytes per step of files that grow by design, by the beginning of their names.
        dropped: events that the timeline lacks.
        faults: what is not as it must be, but for rows.
    """

    steps: int = 0
    seconds: float = 0.0
    generations: int = 0
    exit_code: int = -1
    warm_up: int = 0
    changes_first: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    scrapes: int = 0
    samples: int = 0
    rows: dict[str, dict[str, Slope]] = field(default_factory=dict)
    growing: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    faults: list[str] = field(default_factory=list)

    def all_faults(self) -> list[str]:
        """Return what is wrong, also of rows."""
        grown = [
            f"{process}: {name} grows by {shown(name, slope.per_1000)} per 1,000 steps"
            for process, numbers in self.rows.items()
            for name, slope in numbers.items()
            if not slope.is_zero
        ]
        return [*self.faults, *grown]


def from_json(text: str) -> Report:
    """Return the report of a file that ``--json`` wrote."""
    report = Report(**json.loads(text))
    report.rows = {
        process: {name: Slope(**slope) for name, slope in numbers.items()}
        for process, numbers in report.rows.items()
    }
    return report


def shown(name: str, number: float) -> str:
    """Return a number with its unit."""
    if name.endswith("bytes"):
        return f"{number / MIB:.1f} MiB" if abs(number) >= MIB else f"{round(number):,} B"
    return f"{round(number, 4) + 0.0:g}"


def table(report: Report) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| process | what | first block | last block | slope per 1,000 steps | at most |",
        "| --- | --- | ---: | ---: | --- | ---: |",
    ]
    for process, numbers in report.rows.items():
        for name, slope in numbers.items():
            error = f"{shown(name, slope.per_1000)} ± {shown(name, slope.error)}"
            verdict = "zero" if slope.is_zero else "**grows**"
            lines.append(
                f"| {process} | {OF_A_PROCESS.get(name, name.removesuffix('_bytes'))} "
                f"| {shown(name, slope.begin)} | {shown(name, slope.end)} "
                f"| {error}: {verdict} | {shown(name, slope.at_most)} |"
            )
    return "\n".join(lines)


def summary(report: Report) -> str:
    """Return what is not in the table."""
    changes = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.changes.items()))
    growing = ", ".join(f"{name} {rate:,.0f} B" for name, rate in sorted(report.growing.items()))
    return (
        f"{report.steps:,} steps on {RANKS} ranks in {report.seconds:.0f} s, "
        f"{report.generations} generations: {report.changes_first} changes in the warm-up, then "
        f"{changes}; {report.samples} samples behind the first {report.warm_up:,} steps; metrics "
        f"read {report.scrapes} times. Files that grow by design, per step: {growing}; "
        f"{report.dropped} events of the timeline dropped."
    )


# ---- The job


class Job:
    """The job, whose output a thread reads, and whose metrics another one does.

    Attributes:
        folder: of all of its files.
        places: pid -> rank, size and generation of workers, as they told last.
        scrapes: how often the metrics were read.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.places: dict[int, tuple[int, int, int]] = {}
        self.scrapes = 0
        for name in ("home", "tmp", "files", "state"):
            (folder / name).mkdir()
        self._hosts = folder / "hosts"
        self.offer(RANKS)
        files = folder / "files"
        words = [
            *("-np", str(RANKS), "--min-np", "1", "--max-np", str(RANKS)),
            *("--host-discovery-script", f"cat {self._hosts}"),
            *("--blacklist-cooldown-range", "1", "1"),
            *("--timeline-filename", str(files / "timeline.json")),
            *("--log", f"jsonl:{files / 'logged.jsonl'}"),
            *("--checkpoint-dir", str(files / "checkpoints")),
            *("--checkpoint-every", str(STEPS_PER_CHECKPOINT // STEPS_PER_COMMIT)),
            *("--watch", "--metrics-port", "0"),
            *(sys.executable, str(WORKER), str(steps), str(folder / "state")),
        ]
        own = {
            "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1",
            **RETURNS_MEMORY,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "horovod.runner.cli", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **own},
        )  # fmt: skip
        self._ended = threading.Event()
        threads = (self._read, self._scrape)
        self._threads = [threading.Thread(target=each, daemon=True) for each in threads]
        for thread in self._threads:
            thread.start()

    def offer(self, slots: int) -> None:
        """Tells the job how many slots there are."""
        new = self._hosts.with_suffix(".new")
        new.write_text(f"localhost:{slots}\n")
        new.replace(self._hosts)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if found := PLACE.search(line):
                rank, size, generation, pid, _ = map(int, found.groups())
                self.places[pid] = rank, size, generation

    def _scrape(self) -> None:
        url = ""
        while not self._ended.wait(SCRAPE_S):
            if not url:
                url = next((found[1] for each in self.lines if (found := METRICS.search(each))), "")
                continue
            token = (self.folder / "home/.horovod/metrics.token").read_text().strip()
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
                self.scrapes += b"horovod_rank_" in answer.read()

    def step(self) -> int:
        """The last step of rank 0; 0 before the first one."""
        file = self.folder / "state/step"
        return int(file.read_text() or 0) if file.exists() else 0

    def generation(self) -> int:
        """The newest generation that a worker has told of."""
        return max((place[2] for place in list(self.places.values())), default=-1)

    def members(self) -> dict[int, int]:
        """Rank -> pid in the newest generation; empty unless all ranks train in it."""
        newest = self.generation()
        found = {
            rank: pid
            for pid, (rank, size, generation) in list(self.places.items())
            if generation == newest and size == RANKS and psutil.pid_exists(pid)
        }
        return found if len(found) == RANKS else {}

    def wait_for(self, what: str, size: int = RANKS) -> None:
        """Waits until the newest generation has so many ranks."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            newest = self.generation()
            if [each for each in list(self.places.values()) if each[1:] == (size, newest)]:
                return
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join([f"{what}: no answer", *self.lines[-40:]]))
            time.sleep(0.05)

    def wait_for_all(self) -> None:
        """Waits until all ranks have said that they train in the newest generation."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.members():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError("\n".join(["some ranks do not train", *self.lines[-40:]]))
            time.sleep(0.05)

    def ends(self) -> int:
        """Waits for the end; the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code


@contextmanager
def started(folder: Path, steps: int) -> Iterator[Job]:
    """A job of which no process is left behind the block."""
    job = Job(folder, steps)
    try:
        yield job
    finally:
        end_family(job.process, PATIENCE_S)


# ---- What is done to it, and what is seen of it


@dataclass
class Sample:
    """What the job uses at one step.

    Attributes:
        processes: by what the process is.
        disk_bytes, files: of all that does not grow by design.
        growing: bytes of the files that do.
        shm_files: entries of /dev/shm that were not there before.
    """

    step: int
    processes: dict[str, Use]
    disk_bytes: int
    files: int
    growing: dict[str, int]
    shm_files: int


class Sampler:
    """Looks at a job; who the launcher and its agents are does not change."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pids = {"launcher": job.process.pid}
        self._before = set(os.listdir("/dev/shm"))
        self.samples: list[Sample] = []

    def find(self) -> None:
        """Finds the processes that live as long as the job."""
        family = psutil.Process(self._job.process.pid).children(recursive=True)
        known = self._job.members()
        servants = [
            each for each in family
            if each.pid not in known.values() and "horovod" in " ".join(each.cmdline())
        ]  # fmt: skip
        for number, each in enumerate(servants):
            self._pids[("guard", "agent")[number] if number < 2 else f"agent {number}"] = each.pid
        self._pids |= {f"rank {rank}": known[rank] for rank in range(OLDEST)}

    def look(self) -> None:
        """Takes a sample if all ranks train and the oldest are still those of the beginning."""
        members = self._job.members()
        if not members:
            return
        processes = {name: use_of(pid) for name, pid in self._pids.items()}
        grow = {name: 0 for name in GROW}
        for file in (self._job.folder / "files").iterdir():
            if name := next((each for each in GROW if file.name.startswith(each)), ""):
                grow[name] += file.stat().st_size
        size, number = disk_use(self._job.folder, lambda name: not name.startswith(GROW))
        news = len(set(os.listdir("/dev/shm")) - self._before)
        # A rank may be gone by now, and its memory be divided among fewer.
        if self._job.members() == members:
            self.samples.append(Sample(self._job.step(), processes, size, number, grow, news))


def change(job: Job, kind: str) -> None:
    """Lets the youngest worker go, and another one come."""
    job.wait_for_all()
    pid = job.members()[RANKS - 1]
    if kind == "drop":
        job.offer(RANKS - 1)
        job.wait_for("a slot was taken away", RANKS - 1)
        job.offer(RANKS)
    else:
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        job.wait_for(f"a worker had to {kind}", RANKS - 1)
    job.wait_for("a worker is to come")


def accompany(
    job: Job, steps: int, steps_per_change: int, changes_first: int
) -> tuple[Sampler, Counter[str], int]:
    """Watches and changes a job until shortly before its end.

    Args:
        changes_first: so many one after the other, before anything counts.

    Returns:
        What was seen, the changes behind the first ones, and the step at which those were over.
    """
    job.wait_for("the job is to start")
    job.wait_for_all()
    sampler, changes = Sampler(job), Counter[str]()
    sampler.find()
    for number in range(changes_first):
        change(job, CHANGES[number % len(CHANGES)])
    first_over = job.step()
    due = first_over + steps_per_change
    while job.process.poll() is None and job.step() < steps:
        if job.step() >= due and due <= steps - steps_per_change and job.members():
            kind = CHANGES[sum(changes.values()) % len(CHANGES)]
            change(job, kind)
            changes[kind] += 1
            due += steps_per_change
        with suppress(OSError):  # the job has ended
            sampler.look()
        time.sleep(SAMPLE_S)
    return sampler, changes, first_over


# ---- What follows from it


def rows(samples: Sequence[Sample]) -> dict[str, dict[str, Slope]]:
    """Fit a line to each number."""
    steps = [float(sample.step) for sample in samples]
    names = [each.name for each in fields(Use)]
    processes = list(samples[0].processes)
    count = len(processes) * len(names) + 3

    def line(values: Sequence[int], name: str) -> Slope:
        return fit(steps, values, PAGE if name.endswith("bytes") else 1, count)

    found = {
        process: {
            name: line([getattr(sample.processes[process], name) for sample in samples], name)
            for name in names
        }
        for process in processes
    }
    found["all"] = {
        name: line([getattr(sample, name) for sample in samples], name)
        for name in ("disk_bytes", "files", "shm_files")
    }
    return found


def run(steps: int, steps_per_change: int, changes_first: int, folder: Path) -> Report:
    """Run a job and judge it."""
    began_s = time.monotonic()
    with started(folder, steps) as job:
        sampler, changes, first_over = accompany(job, steps, steps_per_change, changes_first)
        report = Report(steps=steps, exit_code=job.ends(), changes=dict(changes))
    report.changes_first = changes_first
    report.seconds = time.monotonic() - began_s
    report.scrapes, report.generations = job.scrapes, job.generation() + 1
    report.warm_up = max(int(WARM_UP * steps), first_over)
    samples = [sample for sample in sampler.samples if sample.step >= report.warm_up]
    report.samples = len(samples)
    if len(samples) >= LEAST_BLOCKS:
        report.rows = rows(samples)
        first, last = samples[0], samples[-1]
        between = max(1, last.step - first.step)
        report.growing = {
            name: (last.growing[name] - first.growing[name]) / between for name in GROW
        }
    for file in (folder / "files").glob("timeline*"):
        with file.open() as lines:
            report.dropped += sum("EVENTS_DROPPED" in line for line in lines)
    report.faults = faults(job, report, steps)
    return report


def faults(job: Job, report: Report, steps: int) -> list[str]:
    """Return what is wrong apart from what grows."""
    file = job.folder / "state/result.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    wanted = {"steps": steps, "equal": True, "finite": True}
    found = [
        f"the result says {name}={result.get(name)!r}, not {value!r}"
        for name, value in wanted.items() if result.get(name) != value
    ]  # fmt: skip
    if report.exit_code:
        found.append(f"the job ended with {report.exit_code}")
    if not report.rows:
        found.append(f"{report.samples} samples are too few: more steps are needed")
    if not report.scrapes:
        found.append("no metrics were read")
    left = [f"worker {pid}" for pid in job.places if psutil.pid_exists(pid)]
    left += [str(each) for each in (job.folder / "tmp").iterdir() if "horovod" in each.name]
    found += [f"left behind: {each}" for each in left]
    if found:
        found += ["what the job printed last:", *job.lines[-40:]]
    return found


def main() -> int:
    """Run, print what came of it, and return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--steps-per-change", type=int, default=5000, help="behind the warm-up")
    parser.add_argument(
        "--changes-first", type=int, default=90, help="in the warm-up; each takes seconds of steps"
    )
    parser.add_argument("--json", type=Path, help="file for the report")
    options = parser.parse_args()
    if options.steps < 2000:
        parser.error(f"--steps {options.steps}: at least 2000, so that a line can be fitted")
    with tempfile.TemporaryDirectory(prefix="horovod-soak-") as name:
        report = run(options.steps, options.steps_per_change, options.changes_first, Path(name))
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    found = report.all_faults()
    print("\n".join([table(report), "", summary(report), *found]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
