"""Elastic training on two hosts: how long a job stands still when one of them is lost.

    python benchmarks/elastic_hosts.py --runs 20
    python benchmarks/elastic_hosts.py --how vanish --runs 10

The hosts are those of the tests (``tests/dist/cluster.py``, ``ssh_hosts.py``): network namespaces
with a sshd each; root, iproute2 and openssh are needed. A job of two workers on each trains without
a framework, steps of 10 ms, a commit every 5 steps. Then one host is lost: all its processes are
killed, one right after the other, or no packet from or to it arrives any more.

What is measured: from the signal, or the cut, to the end of the next allreduce of the other host's
workers. Each run is a job of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "dist"))

import cluster
import ssh_hosts

if TYPE_CHECKING:
    from launcher import Launcher

TIMEOUT_S = 60.0
WORDS = ("-np", "4", "--min-np", "2", "-H", "host0:2,host1:2")

PROGRAM = """
import os, sys, time
from horovod._rank import context
from horovod.common.elastic import ObjectState
from horovod._train import objects
from horovod._train.elastic.run import run

folder = sys.argv[1]
marks = open(os.path.join(folder, f"{os.getpid()}.marks"), "a", buffering=1)
stop = os.path.join(folder, "stop")

def broadcast_object(value, root_rank=0):
    return objects.broadcast_object(context.global_group(), value, root_rank)

context.init()
state = ObjectState(broadcast_object, lambda: context.global_group().rank, step=0, ends=False)

@run
def train(state):
    while not state.ends:
        time.sleep(0.01)
        context.global_group().barrier().wait()
        marks.write(f"{time.monotonic():.6f} {context.size()}\\n")
        state.step += 1
        if state.step % 5 == 0:
            state.ends = broadcast_object(os.path.exists(stop))
            state.commit()

train(state)
"""


def sizes_since(folder: Path, since_s: float) -> list[tuple[float, int]]:
    """When allreduces ended, and of how many ranks they were."""
    found = []
    for path in folder.glob("*.marks"):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and float(words[0]) > since_s:
                found.append((float(words[0]), int(words[1])))
    return sorted(found)


def wait_for(folder: Path, launcher: Launcher, size: int, since_s: float, count: int) -> float:
    """Waits for some allreduces of that many ranks; when the first of them ended."""
    until_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until_s and launcher.process.poll() is None:
        ends = [at_s for at_s, ranks in sizes_since(folder, since_s) if ranks == size]
        if len(ends) >= count:
            return ends[0]
        time.sleep(0.02)
    raise SystemExit(f"no {size} ranks train:\n{launcher.lines}")


def lose_host(how: str) -> float:
    """Starts a job, takes its second host away; returns how long the first one stood still."""
    with tempfile.TemporaryDirectory() as name, cluster.Cluster(2) as hosts:
        folder = Path(name)
        program = folder / "train.py"
        program.write_text(PROGRAM)
        keys = folder / "ssh"
        keys.mkdir()
        command = (sys.executable, str(program), name)
        with ssh_hosts.SshHosts(hosts, keys) as ssh, ssh.launched(*WORDS, *command) as launcher:
            wait_for(folder, launcher, 4, 0.0, 200)
            began_s = time.monotonic()
            if how == "kill":
                for process in ssh.processes(1):
                    process.kill()
            else:
                hosts.cut(1)
            stood_s = wait_for(folder, launcher, 2, began_s, 10) - began_s
            (folder / "stop").touch()
            if launcher.wait():
                raise SystemExit(f"the job failed:\n{launcher.lines}")
            ssh.assert_nothing_runs(15.0)
    return stood_s


def main() -> None:
    """Loses hosts, and prints how long the others stood still."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=["kill", "vanish"], default="kill")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    reason = ssh_hosts.why_not()
    if reason:
        raise SystemExit(reason)
    os.environ["HOROVOD_START_TIMEOUT"] = "90"
    times = []
    for number in range(options.runs):
        times.append(lose_host(options.how))
        print(f"{options.how} {number + 1}: {times[-1]:.3f} s", file=sys.stderr, flush=True)
    print(f"{options.how}: {statistics.median(times):.2f} s median, {max(times):.2f} s worst")


if __name__ == "__main__":
    main()
