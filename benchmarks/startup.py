"""Startup: from the launcher's command line to the first finished allreduce of PyTorch.

    python benchmarks/startup.py --np 2 --rounds 7

Every round starts each of these once, in turn, and reads the time at which the slowest rank has
done its part: plain processes side by side that import torch and add two tensors; ``horovodrun``;
``torchrun`` with gloo. What is compared are the times above the plain processes of the same round.
Beside it stands the processor time of all processes, which other programs on the machine disturb
less. The moments in between are printed too, each as the time at which the last rank passed it.
Byte code is kept in a folder of the benchmark, as it is in an installation.
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
from pathlib import Path

TIMEOUT_S = 300.0
LAUNCHERS = ("plain", "horovodrun", "torchrun")

PROLOGUE = """
import json, os, sys, time
marks = [("python", time.monotonic())]
def mark(name): marks.append((name, time.monotonic()))
import torch
mark("import torch")
"""

EPILOGUE = """
mark("allreduce")
with open(os.path.join(sys.argv[1], str(os.getpid())), "w") as file: json.dump(marks, file)
"""

PROGRAMS = {
    "plain": PROLOGUE + "torch.ones(1) + torch.ones(1)" + EPILOGUE,
    "horovodrun": PROLOGUE
    + """
import horovod.torch as hvd
mark("import horovod.torch")
hvd.init()
mark("init")
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
"""
    + EPILOGUE,
    "torchrun": PROLOGUE
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
mark("init")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
"""
    + EPILOGUE,
}


def commands(launcher: str, size: int, program: Path, results: Path) -> list[list[str]]:
    """The processes to start, all at once."""
    script = [str(program), str(results)]
    if launcher == "plain":
        return [[sys.executable, *script]] * size
    if launcher == "torchrun":
        return [
            [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}", *script]
        ]
    launcher = [sys.executable, "-m", "horovod.runner.cli", "-np", str(size)]
    return [[*launcher, sys.executable, *script]]


def environment(folder: Path) -> dict[str, str]:
    """One thread per rank, and byte code that the first round leaves to the others."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def cpu_s() -> float:
    """What all processes that were started and have ended have used, with their descendants."""
    used = os.times()
    return used.children_user + used.children_system


def measure(launcher: str, size: int, folder: Path) -> dict[str, float]:
    """Starts one job; returns seconds from its start until the last rank passed each mark."""
    program = folder / f"{launcher}.py"
    program.write_text(PROGRAMS[launcher])
    with tempfile.TemporaryDirectory(dir=folder) as results:
        lines = commands(launcher, size, program, Path(results))
        env = environment(folder)
        used_s = cpu_s()
        began_s = time.monotonic()
        running = [
            subprocess.Popen(
                line,
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # As launchers do: on a busy machine the kernel divides time between sessions.
                start_new_session=True,
            )
            for line in lines
        ]
        complaints = [process.communicate(timeout=TIMEOUT_S)[1] for process in running]
        ended_s = time.monotonic()
        files = sorted(Path(results).iterdir())
        if len(files) != size:
            raise SystemExit(f"{launcher}: {b''.join(complaints).decode(errors='replace')}")
        ranks = [json.loads(file.read_text()) for file in files]
    times = {name: max(dict(marks)[name] for marks in ranks) - began_s for name, _ in ranks[0]}
    return {**times, "exit": ended_s - began_s, "cpu": cpu_s() - used_s}


def show(rounds: list[dict[str, dict[str, float]]]) -> str:
    """A table of medians, and one of the time above the plain processes."""
    lines = []
    for launcher in rounds[0]:
        marks = rounds[0][launcher]
        medians = {
            mark: statistics.median(each[launcher][mark] for each in rounds) for mark in marks
        }
        text = ", ".join(f"{mark} {seconds:.2f}" for mark, seconds in medians.items())
        lines.append(f"{launcher:>10}: {text}")
    for launcher in rounds[0]:
        if launcher != "plain":
            lines += [
                above_plain(rounds, launcher, "allreduce", "time to the allreduce"),
                above_plain(rounds, launcher, "cpu", "processor time of all"),
            ]
    return "\n".join(lines)


def above_plain(
    rounds: list[dict[str, dict[str, float]]], launcher: str, mark: str, what: str
) -> str:
    above = [each[launcher][mark] - each["plain"][mark] for each in rounds]
    return (
        f"{launcher:>10} above plain, {what}: median {statistics.median(above):.2f} s, "
        f"from {min(above):.2f} to {max(above):.2f}"
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--np", type=int, default=2, help="number of ranks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--launchers", type=lambda text: text.split(","), default=list(LAUNCHERS))
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    args = parser.parse_args()
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds + 1):
            turn = number % len(args.launchers)
            order = args.launchers[turn:] + args.launchers[:turn]
            times = {launcher: measure(launcher, args.np, Path(folder)) for launcher in order}
            if number > 0:  # the first round fills the caches of files and byte code
                rounds.append({launcher: times[launcher] for launcher in args.launchers})
    load = os.getloadavg()[0]
    print(f"{args.np} ranks, {args.rounds} rounds, load average {load:.1f}; seconds, medians")
    print(show(rounds))
    if args.json:
        args.json.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
