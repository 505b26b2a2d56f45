"""Benchmarks between hosts that are network namespaces of this machine.

The hosts are those of the tests (``tests/dist/cluster.py``): root and iproute2 are needed. Ranks
are started by the tests' own driver, or by Open MPI's mpirun if Open MPI takes part; its daemons
are started in the namespaces, each with a host name of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure

from horovod._job.job import open_job

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "dist"))
import cluster

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

KILL_TIMEOUT_S = 10.0
IPERF3_S = 5
IPERF3_MOST_S = 60

# By a name that mpirun's daemon is to be started for: enters the namespace, and sets the host name.
_AGENT = """#!/bin/sh
case "$1" in
{cases}
*) echo "unknown host $1" >&2; exit 1;;
esac
shift
exec nsenter --net=/run/netns/$namespace unshare --uts \
sh -c "echo $name > /proc/sys/kernel/hostname; exec sh -c '$*'"
"""


@dataclass(frozen=True)
class Shape:
    """Where ranks run.

    Attributes:
        hosts: how many.
        ranks_per_host: on each of them.
        rate_mbit: Mbit/s of each host in each direction; None for no limit.
    """

    hosts: int
    ranks_per_host: int
    rate_mbit: float | None

    def __str__(self) -> str:
        rate = "no rate limit" if self.rate_mbit is None else f"{self.rate_mbit:g} Mbit/s a host"
        return f"{self.hosts} hosts x {self.ranks_per_host}, {rate}"


def check_possible() -> None:
    """Ends the program if there can be no emulated hosts.

    Raises:
        SystemExit: with the reason.
    """
    reason = cluster.why_not()
    if reason:
        raise SystemExit(reason)


def add_rate_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--rate-mbit``."""
    parser.add_argument(
        "--rate-mbit",
        type=float,
        default=1000.0,
        help="Mbit/s of each host, in each direction; 0 for no limit (default: 1000)",
    )


def run_on_hosts(
    script: str, arguments: Sequence[str], shape: Shape, with_mpi: bool = False
) -> Any:
    """Runs ``script`` once per rank and returns the run that rank 0 has measured.

    Args:
        script: the file of the benchmark.
        arguments: its command line, to which ``--result FILE`` is added.
        shape: where the ranks run.
        with_mpi: start the ranks by Open MPI's mpirun.

    Raises:
        SystemExit: a rank failed, or all of it took longer than ``measure.JOB_TIMEOUT_S``.
    """
    with tempfile.TemporaryDirectory(prefix="horovod-benchmark-") as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, script, *arguments, "--result", str(result)]
        with cluster.Cluster(shape.hosts, shape.rate_mbit) as hosts:
            if with_mpi:
                _run_with_mpirun(hosts, shape, command, Path(directory))
            else:
                outcome = hosts.run(
                    shape.ranks_per_host, command, None, measure.JOB_TIMEOUT_S, relay=True
                )
                if any(outcome.codes):
                    raise SystemExit(f"the ranks ended with exit codes {outcome.codes}")
        return json.loads(result.read_text())


def iperf3_mbit_per_s(shape: Shape, streams: int) -> float:
    """Return the Mbit/s that iperf3 sustains between two hosts, in the slower of both directions.

    Args:
        shape: of the hosts.
        streams: TCP connections in each direction.

    Raises:
        SystemExit: iperf3 is not installed, or failed.
    """
    if shutil.which("iperf3") is None:
        raise SystemExit("iperf3 is missing: apt-get install iperf3")
    with cluster.Cluster(2, shape.rate_mbit) as hosts:
        first, second = hosts.hosts[:2]
        with cluster.entered(first.namespace):
            words = ["timeout", str(IPERF3_MOST_S), "iperf3", "-s", "-1", "-B", first.address]
            words.append("--forceflush")
            server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            while "listening" not in (line := server.stdout.readline()):
                if not line:
                    raise SystemExit("iperf3 does not listen")
            words = ["iperf3", "-c", first.address, "--bidir", "-J"]
            words += ["-P", str(streams), "-t", str(IPERF3_S), "-O", "1"]
            with cluster.entered(second.namespace):
                client = subprocess.run(
                    words, stdout=subprocess.PIPE, text=True, check=False, timeout=IPERF3_MOST_S
                )
        finally:
            server.terminate()
            server.communicate(timeout=KILL_TIMEOUT_S)
    found = json.loads(client.stdout)
    if client.returncode:
        raise SystemExit(f"iperf3: {found.get('error')}")
    ways = ("sum_received", "sum_received_bidir_reverse")
    return min(float(found["end"][way]["bits_per_second"]) for way in ways) / 1e6


def _run_with_mpirun(
    hosts: cluster.Cluster, shape: Shape, command: Sequence[str], directory: Path
) -> None:
    with cluster.entered(hosts.hosts[0].namespace):
        job = open_job(hosts.hosts[0].address)
    with job:
        environ = {**os.environ, **job.told(directory).variables()}
        words = [*_mpirun(hosts, shape, _write_agent(hosts, directory)), *command]
        code = _run_to_the_end(hosts, words, environ)
    if code:
        raise SystemExit(f"mpirun ended with exit code {code}")


def _write_agent(hosts: cluster.Cluster, directory: Path) -> Path:
    cases = [f"{h.address}) namespace={h.namespace}; name={h.name};;" for h in hosts.hosts]
    agent = directory / "agent"
    agent.write_text(_AGENT.format(cases="\n".join(cases)))
    agent.chmod(0o700)
    return agent


def _mpirun(hosts: cluster.Cluster, shape: Shape, agent: Path) -> list[str]:
    places = [f"{host.address}:{shape.ranks_per_host}" for host in hosts.hosts]
    mpirun = measure.find_mpirun()
    assert mpirun is not None
    options = {
        "pml": "ob1",
        "btl": "tcp,sm,self",
        "btl_tcp_if_include": cluster.INTERFACE,
        "mpi_yield_when_idle": "1",  # it does not see that all hosts share their cores
    }
    return [
        *(mpirun, "--allow-run-as-root", "--bind-to", "none"),
        *("--prtemca", "plm_ssh_agent", str(agent)),
        *("--prtemca", "prte_if_include", cluster.INTERFACE),
        *(word for name, value in options.items() for word in ("--mca", name, value)),
        *("--host", ",".join(places)),
        *("-np", str(shape.hosts * shape.ranks_per_host)),
    ]


def _run_to_the_end(
    hosts: cluster.Cluster, words: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Runs mpirun on the first host, with its name; returns the exit code."""
    rename = f'echo {hosts.hosts[0].name} > /proc/sys/kernel/hostname; exec "$@"'
    with cluster.entered(hosts.hosts[0].namespace):
        process = subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", rename, "mpirun", *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        return process.wait(measure.JOB_TIMEOUT_S)
    except BaseException:
        # Daemons and ranks end when mpirun does.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(KILL_TIMEOUT_S)
        raise
