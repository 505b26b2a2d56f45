"""How much longer the steps of a job are while somebody looks at its page.

python benchmarks/watched_steps.py --pairs 10

One job of real ranks trains. By turns, a page is served for it and one viewer reads the page's
stream as a browser does, or nobody looks. Both cases see the same machine within seconds, and each
pair of turns yields one difference. The browser is not part of it: it usually runs elsewhere.
The processor time of a step, of all threads of rank 0, is measured, too: other programs hardly
change it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

# After a change of viewers, ranks take so long to hear of it, at most.
_SETTLE_S = 3.0
_START_S, _WARM_UP_STEPS = 180.0, 150
_RANK = """
import json, sys, time
from pathlib import Path
import torch
import horovod.torch as hvd
hvd.init()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
data = torch.randn(256, 512)
with open(sys.argv[1] if hvd.rank() == 0 else "/dev/null", "w", buffering=1) as file:
    step = 0
    while True:
        began, used = time.monotonic(), time.process_time()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        row = began, time.monotonic() - began, time.process_time() - used
        file.write(json.dumps(row) + "\\n")
        step += 1
        if step % 20 == 0:
            stop = torch.tensor(float(Path(sys.argv[2]).exists()))
            if hvd.allreduce(stop, op=hvd.Sum, name="stop").item():
                break
"""


@contextmanager
def job(size: int, folder: Path) -> Iterator[tuple[int, Path]]:
    """A job that trains; yields the process id of its launcher, and the file of its steps."""
    script, steps, stop = folder / "rank.py", folder / "steps", folder / "stop"
    script.write_text(_RANK)
    words = [sys.executable, "-m", "horovod.runner.cli", "-np", str(size), sys.executable]
    with subprocess.Popen([*words, str(script), str(steps), str(stop)]) as process:
        try:
            yield process.pid, steps
        finally:
            stop.touch()
            process.wait(60)


@contextmanager
def viewed(pid: int) -> Iterator[int]:
    """Serve the page of a job, and read all a browser would get; yield the server's process id."""
    words = [sys.executable, "-m", "horovod.runner.cli", "dashboard", str(pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        base, token = server.stdout.readline().split("job: ")[1].strip().split("#")
        headers = {"Authorization": f"Bearer {token}"}
        answer = urllib.request.urlopen(urllib.request.Request(f"{base}stream", headers=headers))

        def read() -> None:
            with suppress(OSError, ValueError):
                while answer.readline():
                    pass

        threading.Thread(target=read, daemon=True).start()
        try:
            yield server.pid
        finally:
            server.terminate()


def medians_ms(steps: Path, begin: float, end: float) -> tuple[float, float]:
    """Return the medians of the steps between two moments: their lengths, and processor time."""
    rows = [json.loads(line) for line in steps.read_text().splitlines()[:-1]]
    chosen = [row for row in rows if begin <= row[0] < end]
    length, used = (statistics.median(row[column] for row in chosen) for column in (1, 2))
    return 1000 * length, 1000 * used


def await_steps(steps: Path) -> None:
    """Wait until the job trains at its usual pace, and its ranks listen for viewers."""
    deadline = time.monotonic() + _START_S
    while not steps.exists() or len(steps.read_text().splitlines()) < _WARM_UP_STEPS:
        if time.monotonic() > deadline:
            raise SystemExit(f"the job did not train within {_START_S:g} s")
        time.sleep(0.2)


def used_s(*pids: int) -> float:
    """Return the processor time of processes until now."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def turn(pid: int, steps: Path, seconds: float, *, is_viewed: bool) -> tuple[float, float, float]:
    """Return what a while was like, with a viewer or without.

    Returns:
        :func:`medians_ms`, and the share of a core that launcher and page used, in percent.
    """
    with ExitStack() as stack:
        pids = (pid, stack.enter_context(viewed(pid))) if is_viewed else (pid,)
        time.sleep(_SETTLE_S)
        begin, before = time.monotonic(), used_s(*pids)
        time.sleep(seconds)
        end = time.monotonic()
        share = 100 * (used_s(*pids) - before) / (end - begin)
        return (*medians_ms(steps, begin, end), share)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        job(options.ranks, Path(folder)) as (pid, steps),
    ):
        await_steps(steps)
        changes: tuple[list[float], list[float]] = ([], [])
        shares: list[float] = []
        for number in range(options.pairs):
            # The order changes, so that a machine that becomes slower favors neither.
            order = (False, True) if number % 2 == 0 else (True, False)
            found = {
                is_viewed: turn(pid, steps, options.seconds, is_viewed=is_viewed)
                for is_viewed in order
            }
            shares.append(found[True][2] - found[False][2])
            words = [f"launcher and page {shares[-1]:.2f} % of a core"]
            for column, what in enumerate(("step", "processor time")):
                alone, viewed_ms = found[False][column], found[True][column]
                changes[column].append(100 * (viewed_ms / alone - 1))
                words.append(f"{what} {alone:.2f} ms, viewed {viewed_ms:.2f} ms")
            print(f"pair {number}: {'; '.join(words)}", flush=True)
    for column, what in enumerate(("step", "processor time of a step")):
        middle, spread = statistics.median(changes[column]), statistics.pstdev(changes[column])
        print(f"{what}: median change {middle:+.2f} % (spread {spread:.2f} %)")
    print(f"launcher and page: {statistics.median(shares):.2f} % of a core for a viewer")


if __name__ == "__main__":
    main()
