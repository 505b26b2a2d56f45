"""Two versions of Horovod in turn: whether a change made anything slower.

    git worktree add ../before v1.0
    python benchmarks/versions.py ../before . mlp cnn 4 65536 views

Each checkout is installed into its folder ``build/versions``, both in the same way. Then two ranks
of each are alive at the same time, and while one version works the other one waits for its turn,
so that what else the machine does hits both. What can be measured: ``mlp`` and ``cnn``, the steps
of ``training_step.py``; ``resnet``, its gradients in one operation each, and ``views``, the same as
views of buckets; or a number of bytes, a tensor that is summed in place.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_RANKS = 2
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
    tensor = torch.zeros(int(what) // 4)
    return lambda: hvd.allreduce_(tensor, name="tensor", op=hvd.Sum)


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

    def __init__(self, opened: ExitStack, checkout: Path, folder: Path, what: str) -> None:
        self._pipes: list[tuple[TextIO, TextIO]] = []
        for rank in range(NUM_RANKS):
            os.mkfifo(folder / f"{rank}.rounds")
            os.mkfifo(folder / f"{rank}.seconds")
        paths = [str(site(checkout)), str(checkout / "benchmarks")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "horovod.runner.cli", "-np", str(NUM_RANKS)]
        # Not this folder's script, whose neighbors would come before those of the other version.
        command += [sys.executable, "-P", __file__, "--rank", str(folder), what]
        job = opened.enter_context(subprocess.Popen(command, env=env, cwd=folder))
        # At their end the pipes are closed, which ends the ranks; unless something went wrong.
        opened.push(lambda kind, *_: job.terminate() if kind else None)
        for rank in range(NUM_RANKS):
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


def compare(checkouts: Sequence[Path], what: str, turns: int) -> str:
    """A row of the table."""
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
        times_s: list[tuple[float, float]] = []
        for number in range(turns):
            if number % 2 == 0:
                before = versions[0].turn(rounds)
                after = versions[1].turn(rounds)
            else:
                after = versions[1].turn(rounds)
                before = versions[0].turn(rounds)
            times_s.append((before, after))
    before_s, after_s = (statistics.median(times) for times in zip(*times_s, strict=True))
    lower, ratio, upper = statistics.quantiles(after / before for before, after in times_s)
    return (
        f"| {what} | {before_s * 1e6:,.1f} µs | {after_s * 1e6:,.1f} µs "
        f"| {ratio:.3f} | {lower:.2f} to {upper:.2f} |"
    )


def main() -> None:
    """Reads the command line."""
    if sys.argv[1:2] == ["--rank"]:
        run_rank(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("what", nargs="+", help="mlp, cnn, resnet, views, or a number of bytes")
    parser.add_argument("--turns", type=int, default=40, help="of each version")
    args = parser.parse_args()
    checkouts = [args.before.resolve(), args.after.resolve()]
    for checkout in checkouts:
        install(checkout)
    print(f"load average before: {os.getloadavg()[0]:.1f}\n")
    print("| what | before | after | after / before, median of turns | quartiles |")
    print("| --- | ---: | ---: | ---: | --- |")
    for what in args.what:
        print(compare(checkouts, what, args.turns), flush=True)


if __name__ == "__main__":
    main()
