"""Jobs that are not started by horovodrun: mpirun, srun, Kubernetes, also on several hosts."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from cluster import Cluster, entered
from launcher import environment, free_port
from ssh_hosts import SshHosts, why_not

import horovod
import horovod.torch as hvd
from horovod.errors import RankFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
DIGITS = [sys.executable, str(ROOT / "examples" / "pytorch" / "digits.py"), "--epochs", "2"]
RANK = [sys.executable, str(Path(__file__).with_name("started_rank.py"))]
PATIENT = {"HOROVOD_START_TIMEOUT": "90"}
DEADLINE_S = 150.0

# Both bring an mpirun, so MPICH has a folder of its own.
OPEN_MPI = shutil.which("mpirun")
MPICH = shutil.which("mpirun", path=str(Path(sys.prefix, "mpich", "bin")))
WHY_NO_HOSTS = why_not()

needs_open_mpi = pytest.mark.skipif(OPEN_MPI is None, reason="Open MPI is not installed")
needs_mpich = pytest.mark.skipif(MPICH is None, reason="MPICH is not installed in its own folder")
needs_hosts = pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)


def open_mpi(*words: str) -> list[str]:
    assert OPEN_MPI is not None
    return [OPEN_MPI, "--allow-run-as-root", "--bind-to", "none", *words]


def mpich(*words: str) -> list[str]:
    assert MPICH is not None
    return [MPICH, "-bind-to", "none", *words]


def run(words: Sequence[str], **env: str) -> str:
    """Runs a job to its good end and returns what it printed."""
    done = subprocess.run(
        words, env=environment(**PATIENT, **env), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_side_by_side(envs: Sequence[dict[str, str]], command: Sequence[str]) -> str:
    """Runs one process for each set of variables, as a launcher without a name."""
    processes = [
        subprocess.Popen(
            command, env=environment(**PATIENT, **env), stdout=subprocess.PIPE, text=True
        )
        for env in envs
    ]
    try:
        texts = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(DEADLINE_S)
    assert [process.returncode for process in processes] == [0] * len(processes)
    return "".join(texts)


def places(text: str) -> list[str]:
    """What started_rank.py prints, in the order of ranks."""
    return sorted(line for line in text.splitlines() if line.startswith("rank "))


ONE_HOST = [f"rank {rank}/2 local {rank}/2 cross 0/1 sum 3.0" for rank in (0, 1)]
TWO_HOSTS = [f"rank {rank}/4 local {rank % 2}/2 cross {rank // 2}/2 sum 10.0" for rank in range(4)]


@needs_open_mpi
@pytest.mark.parametrize("mpi", ["none", "uneven", "before", "after"])
def test_open_mpi_on_one_host(mpi: str) -> None:
    if mpi in ("before", "after"):
        pytest.importorskip("mpi4py")
    assert places(run(open_mpi("--oversubscribe", "-np", "2", *RANK, mpi))) == ONE_HOST


@needs_mpich
@pytest.mark.parametrize("mpi", ["none", "uneven", "before", "after"])
def test_mpich_on_one_host(mpi: str) -> None:
    env = {}
    if mpi in ("before", "after"):
        pytest.importorskip("mpi4py")
        libraries = Path(str(MPICH)).parents[1] / "lib"
        env = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(libraries)}
    assert places(run(mpich("-np", "2", *RANK, mpi), **env)) == ONE_HOST


@needs_mpich
def test_mpich_starts_the_ranks_and_moves_their_data() -> None:
    command = mpich("-np", "2", *RANK, "none")
    assert places(run(command, HOROVOD_CPU_OPERATIONS="mpi")) == ONE_HOST


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(OPEN_MPI, marks=needs_open_mpi, id="open-mpi"),
        pytest.param(MPICH, marks=needs_mpich, id="mpich"),
    ],
)
def test_horovodrun_writes_the_line_of_mpirun(program: str) -> None:
    words = [sys.executable, "-m", "horovod.runner.cli", "--mpi", "-np", "2", "-H", "localhost:2"]
    path = f"{Path(program).parent}:{os.environ['PATH']}"
    text = run([*words, *RANK, "none"], PATH=path, MY_TOKEN="hush")
    assert [line[line.index("rank ") :] for line in sorted(text.splitlines())] == ONE_HOST
    shown = run([*words, "--dry-run", *RANK, "none"], PATH=path, MY_TOKEN="hush")
    assert shown.startswith("mpirun ")
    assert "MY_TOKEN" in shown
    assert "hush" not in shown


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(OPEN_MPI, marks=needs_open_mpi, id="open-mpi"),
        pytest.param(MPICH, marks=needs_mpich, id="mpich"),
    ],
)
def test_run_lets_mpirun_start_the_ranks_and_gets_their_results(
    program: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{Path(program).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "90")
    assert horovod.run(_named_sum, (2.0,), num_proc=2, use_mpi=True) == [(0, 4.0), (1, 4.0)]
    printed = capfd.readouterr().out
    assert "rank 0 runs" in printed
    assert "rank 1 runs" in printed
    with pytest.raises(RankFailedError, match="only rank 1") as caught:
        horovod.run(_fail_on_one, num_proc=2, use_mpi=True)
    assert (caught.value.rank, caught.value.host) == (1, "localhost")


def _named_sum(value: float) -> tuple[int, float]:
    hvd.init()
    print(f"rank {hvd.rank()} runs", flush=True)
    return hvd.rank(), hvd.allreduce(torch.tensor([value]), op=hvd.Sum).item()


def _fail_on_one() -> None:
    hvd.init()
    if hvd.rank() == 1:
        raise ValueError("only rank 1")
    hvd.barrier()


@needs_open_mpi
@needs_hosts
def test_open_mpi_trains_the_digits_example_on_two_hosts(tmp_path: Path) -> None:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path) as hosts:
        names = ",".join(f"{host.address}:2" for host in cluster.hosts)
        with entered(cluster.hosts[0].namespace):
            words = open_mpi(
                "-np", "4", "-H", names, "-x", "HOROVOD_START_TIMEOUT", "-x", "PYTHONPATH"
            )
            assert places(run([*words, *RANK, "none"], **hosts.environment)) == TWO_HOSTS
            assert "on 4 rank(s)" in run([*words, *DIGITS], **hosts.environment)
        hosts.assert_nothing_runs(20.0)


@needs_mpich
@needs_hosts
def test_mpich_trains_the_digits_example_on_two_hosts(tmp_path: Path) -> None:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path) as hosts:
        names = ",".join(host.address for host in cluster.hosts)
        with entered(cluster.hosts[0].namespace):
            words = mpich("-np", "4", "-ppn", "2", "-hosts", names)
            assert places(run([*words, *RANK, "none"], **hosts.environment)) == TWO_HOSTS
            assert "on 4 rank(s)" in run([*words, *DIGITS], **hosts.environment)
        hosts.assert_nothing_runs(20.0)


def test_slurm_trains_the_digits_example(tmp_path: Path) -> None:
    envs = [
        {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0",
            "HOME": str(tmp_path),
        }
        for rank in range(2)
    ]
    assert places(run_side_by_side(envs, [*RANK, "none"])) == ONE_HOST
    assert "on 2 rank(s)" in run_side_by_side(envs, DIGITS)


def test_an_indexed_job_of_kubernetes() -> None:
    key = secrets.token_hex(32)
    with free_port() as port:
        envs = [
            {
                "JOB_COMPLETION_INDEX": str(rank),
                "HOROVOD_SIZE": "2",
                "HOROVOD_RENDEZVOUS": f"localhost:{port}",
                "HOROVOD_SECRET_KEY": key,
            }
            for rank in range(2)
        ]
        assert places(run_side_by_side(envs, [*RANK, "none"])) == ONE_HOST
