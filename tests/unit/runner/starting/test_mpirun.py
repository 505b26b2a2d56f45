"""The command lines of mpirun and jsrun."""

from __future__ import annotations

from typing import Any

import pytest

from horovod.errors import UsageError
from horovod.runner.placing.hosts import assign, parse_hosts
from horovod.runner.starting.mpirun import Mpi, MpiJob, identify, jsrun_line, mpirun_line
from horovod.runner.starting.ssh import SshOptions


def job(hosts: str, num_proc: int, **more: Any) -> MpiJob:
    environ = {"PATH": "/bin", "B": "x y", "A": "1", "HOME": "/me", "CUDA_VISIBLE_DEVICES": "0"}
    given = {"command": ["python", "train.py", "--lr", "a b"], "environ": environ, **more}
    return MpiJob(assign(parse_hosts(hosts), num_proc), **given)


FULL: dict[str, Any] = {
    "ssh": SshOptions(1022, "/my key"),
    "network_interfaces": ["eth0"],
    "output_filename": "/out",
    "timestamps": True,
    "mpi_args": "--mca a 'b c'",
    "as_root": True,
}


@pytest.mark.parametrize(
    ("version", "mpi"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to …", Mpi.OPEN_MPI),
        ("mpirun (Open MPI) 4.1.4\n", Mpi.OPEN_MPI_4),
        ("OpenRTE 3.1.3", Mpi.OPEN_MPI_4),
        ("mpirun (IBM Spectrum MPI) 10.3.0 (Open MPI)", Mpi.SPECTRUM),
        ("HYDRA build details:\n    Version: 5.0.2", Mpi.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", Mpi.INTEL),
    ],
)
def test_the_implementation_is_told_by_its_version(version: str, mpi: Mpi) -> None:
    assert identify(version) is mpi


def test_an_unknown_implementation_is_quoted() -> None:
    with pytest.raises(UsageError, match="belongs to no known MPI \\('mvapich 9'\\)"):
        identify("mvapich\n 9")


@pytest.mark.parametrize(
    ("mpi", "expected"),
    [
        (
            Mpi.OPEN_MPI,
            "mpirun --output tag -np 3 -H a:2,b:1 --bind-to none --map-by slot -x A -x B -x PATH",
        ),
        (
            Mpi.OPEN_MPI_4,
            "mpirun --tag-output -np 3 -H a:2,b:1 --bind-to none --map-by slot -x A -x B -x PATH",
        ),
        (
            Mpi.SPECTRUM,
            "mpirun --tag-output -np 3 -H a:2,b:1 --bind-to socket --map-by socket --rank-by core "
            "-x A -x B -x PATH",
        ),
    ],
)
def test_the_shortest_line_of_open_mpi(mpi: Mpi, expected: str) -> None:
    line = mpirun_line(mpi, job("a:2,b:2", 3))
    assert line == [*expected.split(), "python", "train.py", "--lr", "a b"]


def test_the_whole_line_of_open_mpi() -> None:
    line = mpirun_line(Mpi.OPEN_MPI, job("a:1,[::1]:1", 2, **FULL, binding_args="--bind-to core"))
    assert line == [
        *[
            "mpirun",
            "--allow-run-as-root",
            "--output",
            "tag,timestamp,file=/out",
            "-np",
            "2",
            "-H",
            "a:1,[::1]:1",
        ],
        *["--bind-to", "core", "--prtemca", "plm_ssh_args"],
        "-p 1022 -i '/my key'",
        *["--mca", "btl_tcp_if_include", "eth0", "-x", "A", "-x", "B", "-x", "PATH", "--mca", "a"],
        "b c",
        *("python", "train.py", "--lr", "a b"),
    ]
    old = mpirun_line(Mpi.OPEN_MPI_4, job("a:1,b:1", 2, **FULL))
    text = " ".join(old)
    assert "--tag-output --timestamp-output --output-filename /out" in text
    assert "--mca plm_rsh_args -p 1022" in text


def test_many_hosts_are_logged_into_from_here() -> None:
    hosts = ",".join(f"h{index}:1" for index in range(64))
    text = " ".join(mpirun_line(Mpi.OPEN_MPI, job(hosts, 64)))
    assert "--prtemca plm_ssh_no_tree_spawn true --prtemca plm_ssh_num_concurrent 64" in text
    assert "tree_spawn" not in " ".join(mpirun_line(Mpi.OPEN_MPI, job(hosts, 63)))


def test_the_lines_of_mpich_and_intel() -> None:
    line = mpirun_line(Mpi.MPICH, job("a:2,b:2", 4, **FULL))
    assert line == [
        *[
            "mpirun",
            "-l",
            "-np",
            "4",
            "-ppn",
            "2",
            "-hosts",
            "a,b",
            "-bind-to",
            "none",
            "-bootstrap",
            "ssh",
        ],
        *("-bootstrap-exec-args", "-p 1022 -i '/my key'"),
        *["-iface", "eth0", "-outfile-pattern", "/out", "-genvlist", "A,B,PATH", "--mca", "a"],
        *("b c", "python", "train.py", "--lr", "a b"),
    ]
    assert "-bind-to" not in mpirun_line(Mpi.INTEL, job("a:2,b:2", 4))
    with pytest.raises(UsageError, match=r"same number of ranks .* a:2,b:1"):
        mpirun_line(Mpi.MPICH, job("a:2,b:2", 3))
    with pytest.raises(UsageError, match="one network interface, not e0, e1"):
        mpirun_line(Mpi.INTEL, job("a:1", 1, network_interfaces=["e0", "e1"]))


def test_a_user_belongs_into_the_configuration_of_ssh() -> None:
    with pytest.raises(UsageError, match="name the user of a in ssh_config"):
        mpirun_line(Mpi.OPEN_MPI, job("me@a:1", 1))


def test_the_line_of_jsrun() -> None:
    line = jsrun_line(job("a:4,b:4", 8, mpi_args="-gpu", output_filename="/out"))
    assert line == [
        *[
            "jsrun",
            "--nrs",
            "2",
            "--rs_per_host",
            "1",
            "--tasks_per_rs",
            "4",
            "--cpu_per_rs",
            "ALL_CPUS",
        ],
        *[
            "--gpu_per_rs",
            "ALL_GPUS",
            "--bind",
            "none",
            "--stdio_stdout",
            "/out",
            "--stdio_stderr",
            "/out",
        ],
        *("--smpiargs", "-gpu", "python", "train.py", "--lr", "a b"),
    ]
    with pytest.raises(UsageError, match="same number of ranks"):
        jsrun_line(job("a:4,b:4", 6))


def test_no_value_of_a_variable_stands_on_a_line() -> None:
    for mpi in Mpi:
        assert "x y" not in mpirun_line(mpi, job("a:1", 1))
    assert "x y" not in repr(job("a:1", 1))
