"""Two versions of Horovod in turn: whether a change made anything slower.

    git worktree add ../before v1.0
    python benchmarks/versions.py ../before . mlp cnn 4 65536 views 65536@4
    python benchmarks/versions.py ../before . data-plane --json versions.json

Each checkout is installed into its folder ``build/versions``, both in the same way. Then two ranks
of each are alive at the same time, and while one version works the other one waits for its turn,
so that what else the machine does hits both. What can be measured: ``mlp`` and ``cnn``, the steps
of ``training_step.py``; ``resnet``, its gradients in one operation each, and ``views``, the same as
views of buckets; ``many``, 500 tensors of 4 KiB in one operation each, all submitted before the
first wait, and ``grouped``, the same as one operation; or a number of bytes, a tensor that is
summed in place. ``@4`` behind any of these takes four ranks. ``data-plane`` stands for ``many``,
``grouped``, ``resnet`` and the sizes from 4 B to 256 MiB, these also on four ranks. ``--jobs``
starts the jobs of all rows several times: what disturbs the machine for some minutes, or where the
system places the ranks of a job, then is not all that there is of a row. With ``--cores``,
``reference/cores.c`` runs before and behind each pair of turns, and a further column has the later
version's median over those turns in which the cores were at their best.

The data file has every turn of both versions, so that tables and plots can be drawn from it later.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_RANKS = 2
KIB, MIB = 2**10, 2**20
SIZES = (4, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
WORDS = ("mlp", "cnn", "resnet", "views", "many", "grouped")
DATA_PLANE = (
    *map(str, SIZES),
    *("many", "grouped", "resnet"),
    *(f"{size}@4" for size in SIZES if size != 4 * KIB),
)
HEAD = (
    "| what | before | after | after / before, median of turns | quartiles |\n"
    "| --- | ---: | ---: | ---: | --- |"
)
HEAD_OF_CORES = HEAD.replace(" |\n", " | after, cores at their best |\n", 1) + " ---: |"
# What cores at their best take, of the least of the whole run: to hand over data, and to compute.
# Cores without a common cache take three times as long for the one, and those that share a core
# of the host with another machine half as long again for the other.
BEST = (1.5, 1.2)
PROBE_S = 0.01
PROBE_TIMEOUT_S = 60.0
WARMUP_S = 1.0
TURN_S = 0.4


def site(checkout: Path) -> Path:
    """Where a checkout is installed."""
    return checkout / "build" / "versions"


def install(checkout: Path) -> None:
    """Compiles a checkout, unless that was done before."""
    if not site(checkout).exists():
        options = ["--quiet", "--no-build-isolation", "--no-deps", "--target", str(site(checkout))]
        command = [sys.executable, "-m", "pip", "install", *options, str(checkout)]
        subprocess.run(command, check=True)


# ---- A rank


def work(what: str) -> Callable[[], object]:
    """What a rank does in one round; imports what the rank's own version brings."""
    import torch
    from training_step import cnn, make_step, mlp

    import horovod.torch as hvd

    if what == "mlp":
        return make_step("horovod", mlp(2048), torch.randn(16, 2048))
    if what == "cnn":
        return make_step("horovod", cnn(64), torch.randn(16, 3, 32, 32))
    if what in ("resnet", "views"):
        from many_tensors import BucketViews, horovod_way, workloads

        counts = workloads(2**30)["ResNet-50"]
        if what == "views":
            return BucketViews(counts, what).run
        return horovod_way([torch.zeros(count) for count in counts], what)
    if what in ("many", "grouped"):
        return many(grouped=what == "grouped")
    tensor = torch.zeros(int(what) // 4)
    return lambda: hvd.allreduce_(tensor, name="tensor", op=hvd.Sum)


def many(grouped: bool) -> Callable[[], object]:
    """500 tensors of 4 KiB: one operation each, or all in one."""
    import torch
    from many_tensors import horovod_way

    import horovod.torch as hvd

    tensors = [torch.zeros(1024) for _ in range(500)]
    if not grouped:
        return horovod_way(tensors, "many")
    return lambda: hvd.grouped_allreduce_(tensors, name="grouped", op=hvd.Sum)


def run_rank(folder: Path, what: str) -> None:
    """Works when it is told to: how many rounds, then answers how many seconds one of them took."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    run = work(what)
    with (
        (folder / f"{hvd.rank()}.rounds").open() as orders,
        (folder / f"{hvd.rank()}.seconds").open("w", buffering=1) as answers,
    ):
        for line in orders:
            # The first round waits for the slower rank, which wakes up.
            run()
            began_s = time.perf_counter()
            for _ in range(int(line)):
                run()
            print((time.perf_counter() - began_s) / int(line), file=answers)


# ---- Who lets them take turns


class Version:
    """The job of a version."""

    def __init__(self, opened: ExitStack, checkout: Path, folder: Path, wanted: str) -> None:
        what, _, ranks = wanted.partition("@")
        num_ranks = int(ranks or NUM_RANKS)
        self._pipes: list[tuple[TextIO, TextIO]] = []
        for rank in range(num_ranks):
            os.mkfifo(folder / f"{rank}.rounds")
            os.mkfifo(folder / f"{rank}.seconds")
        paths = [str(site(checkout)), str(checkout / "benchmarks")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "horovod.runner.cli", "-np", str(num_ranks)]
        # Not this folder's script, whose neighbors would come before those of the other version.
        command += [sys.executable, "-P", __file__, "--rank", str(folder), what]
        job = opened.enter_context(subprocess.Popen(command, env=env, cwd=folder))
        # At their end the pipes are closed, which ends the ranks; unless something went wrong.
        opened.push(lambda kind, *_: job.terminate() if kind else None)
        for rank in range(num_ranks):
            orders = opened.enter_context((folder / f"{rank}.rounds").open("w", buffering=1))
            answers = opened.enter_context((folder / f"{rank}.seconds").open())
            self._pipes.append((orders, answers))

    def turn(self, rounds: int) -> float:
        """Seconds of a round on the slower rank."""
        for orders, _ in self._pipes:
            print(rounds, file=orders)
        lines = [answers.readline() for _, answers in self._pipes]
        if not all(lines):
            raise SystemExit("a rank has ended; its output says why")
        return max(map(float, lines))


class Cores:
    """Measures what the cores can do while nothing else runs.

    Args:
        folder: for the compiled program.
    """

    def __init__(self, folder: Path) -> None:
        self._program = folder / "cores"
        source = Path(__file__).parent / "reference" / "cores.c"
        options = ["-O2", "-pthread", str(source), "-o", str(self._program)]
        subprocess.run([os.environ.get("CC", "cc"), *options], check=True)

    def measure_us(self) -> list[float]:
        """Returns the time to hand over data, and that to compute."""
        command = [str(self._program), str(PROBE_S)]
        ended = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
        return [float(number) for number in ended.stdout.split()]


@dataclass(frozen=True)
class Row:
    """What was measured of one thing.

    Attributes:
        what: as on the command line.
        rounds: in each turn; in those of the first job, if there were several.
        before_s, after_s: seconds of a round on the slowest rank, by turn; turns of the same number
            were neighbors.
        cores_us: of each pair of turns, what the cores took to hand over data and to compute, the
            longer time of before and behind it; empty if it was not measured.
    """

    what: str
    rounds: int
    before_s: list[float]
    after_s: list[float]
    cores_us: list[list[float]] = field(default_factory=list)

    def joined(self, later: Row) -> Row:
        """The turns of both."""
        return Row(
            self.what,
            self.rounds,
            self.before_s + later.before_s,
            self.after_s + later.after_s,
            self.cores_us + later.cores_us,
        )

    def show(self, least_us: Sequence[float] = ()) -> str:
        """A row of the table.

        Args:
            least_us: what the cores took at best, if there is a column for that.
        """
        ratios = [after / before for before, after in zip(self.before_s, self.after_s, strict=True)]
        lower, ratio, upper = statistics.quantiles(ratios)
        times = [show_quartiles(times) for times in (self.before_s, self.after_s)]
        row = f"| {self.what} | {' | '.join(times)} | {ratio:.3f} | {lower:.2f} to {upper:.2f} |"
        return f"{row} {self._show_best(least_us)} |" if least_us else row

    def _show_best(self, least_us: Sequence[float]) -> str:
        """The later version's median over the turns with cores at their best, and how many."""
        most_us = [times * least for times, least in zip(BEST, least_us, strict=True)]
        best_s = [
            after_s
            for after_s, cores_us in zip(self.after_s, self.cores_us, strict=True)
            if all(us <= most for us, most in zip(cores_us, most_us, strict=True))
        ]
        if not best_s:
            return "never"
        return f"{statistics.median(best_s) * 1e6:,.1f} µs in {len(best_s)} of {len(self.after_s)}"


def show_quartiles(times_s: Sequence[float]) -> str:
    """The median, and the quartiles behind it."""
    lower, median, upper = (f"{time_s * 1e6:,.1f}" for time_s in statistics.quantiles(times_s))
    return f"{median} ({lower} to {upper}) µs"


def compare(checkouts: Sequence[Path], what: str, turns: int, cores: Cores | None) -> Row:
    """Lets both versions take turns."""
    with tempfile.TemporaryDirectory(prefix="horovod-versions-") as folder, ExitStack() as opened:
        versions = []
        for number, checkout in enumerate(checkouts):
            own = Path(folder) / str(number)
            own.mkdir()
            versions.append(Version(opened, checkout, own, what))
        first_s = max(version.turn(5) for version in versions)
        for version in versions:
            version.turn(max(1, int(WARMUP_S / first_s)))
        rounds = max(1, int(TURN_S / first_s))
        row = Row(what, rounds, [], [])
        for number in range(turns):
            columns = [row.before_s, row.after_s]
            found_us = [cores.measure_us()] if cores else []
            # Nobody always comes first.
            for place in (0, 1) if number % 2 == 0 else (1, 0):
                columns[place].append(versions[place].turn(rounds))
            if cores:
                found_us.append(cores.measure_us())
                row.cores_us.append([max(us) for us in zip(*found_us, strict=True)])
    return row


def show_report(report: dict[str, Any]) -> str:
    """The table of a data file."""
    rows = [Row(**row) for row in report["rows"]]
    title = f"load average before: {report['load_average']:.1f}"
    cores_us = [us for row in rows for us in row.cores_us]
    if not cores_us:
        return "\n".join([title, "", HEAD, *(row.show() for row in rows)])
    least_us = [min(column) for column in zip(*cores_us, strict=True)]
    title += "; at best, the cores took {:.0f} and {:.0f} µs".format(*least_us)
    return "\n".join([title, "", HEAD_OF_CORES, *(row.show(least_us) for row in rows)])


def wanted_rows(words: Sequence[str]) -> list[str]:
    """What to measure, of a command line.

    Raises:
        SystemExit: a word stands for nothing.
    """
    rows: list[str] = []
    for word in words:
        rows += DATA_PLANE if word == "data-plane" else (word,)
    for row in rows:
        what, at, ranks = row.partition("@")
        is_size = what.isdecimal() and int(what) >= 4
        if not (what in WORDS or is_size) or (at and not (ranks.isdecimal() and int(ranks) >= 2)):
            raise SystemExit(
                f"{row} cannot be measured: give {', '.join(WORDS)}, data-plane or a number of "
                "bytes from 4, and @N behind it for N ranks"
            )
    return rows


def main() -> None:
    """Reads the command line."""
    if sys.argv[1:2] == ["--rank"]:
        run_rank(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument(
        "what",
        nargs="+",
        help=f"{', '.join(WORDS)}, data-plane, or a number of bytes; @4: on 4 ranks",
    )
    parser.add_argument("--turns", type=int, default=40, help="of each version in a job")
    parser.add_argument("--jobs", type=int, default=1, help="of each version, for each row")
    parser.add_argument("--cores", action="store_true", help="tell when they were at their best")
    parser.add_argument("--json", type=Path, help="a file for the times of all turns")
    args = parser.parse_args()
    wanted = wanted_rows(args.what)
    if args.turns < 2:
        parser.error("--turns: quartiles need at least 2")
    if args.jobs < 1:
        parser.error("--jobs: there must be one")
    if args.json is not None and not args.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {args.json.resolve().parent}; make it")
    checkouts = [args.before.resolve(), args.after.resolve()]
    for checkout in checkouts:
        install(checkout)
    with tempfile.TemporaryDirectory(prefix="horovod-cores-") as folder:
        cores = Cores(Path(folder)) if args.cores else None
        print(show_report(measure(checkouts, wanted, args, cores)))


def measure(
    checkouts: Sequence[Path], wanted: Sequence[str], args: argparse.Namespace, cores: Cores | None
) -> dict[str, Any]:
    """All jobs; returns what the data file holds, which is written after each of them."""
    report: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    rows: dict[str, Row] = {}
    for number, what in product(range(args.jobs), wanted):
        row = compare(checkouts, what, args.turns, cores)
        rows[what] = rows[what].joined(row) if what in rows else row
        print(f"job {number + 1}: {row.show()}", file=sys.stderr, flush=True)
        report["rows"] = [asdict(each) for each in rows.values()]
        if args.json is not None:
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


if __name__ == "__main__":
    main()
