"""The command line of mpirun or jsrun that starts the ranks in place of our agents. Pure.

On the line stand only the names of variables; mpirun takes their values from its own environment.
The ranks find each other as they do under any mpirun, see :mod:`horovod._job.bootstrap`.
"""

from __future__ import annotations

import enum
import itertools
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.starting.ssh import SshOptions
from horovod.runner.system.environment import without_own

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.placing.hosts import Slot

# Above this, one mpirun logs in everywhere itself instead of by a tree of hosts.
_MANY_HOSTS = 64


class Mpi(enum.Enum):
    """Implementations whose mpirun takes different options."""

    OPEN_MPI = "Open MPI 5"
    OPEN_MPI_4 = "Open MPI 4"
    SPECTRUM = "Spectrum MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"


def identify(version: str) -> Mpi:
    """Tells the implementation from what ``mpirun --version`` prints.

    Raises:
        UsageError: it is none of those; the message quotes the text.
    """
    if "IBM Spectrum MPI" in version:
        return Mpi.SPECTRUM
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        number = re.search(r"(?:Open MPI\)?|OpenRTE\)?) v?(\d+)", version)
        return Mpi.OPEN_MPI_4 if number and int(number[1]) < 5 else Mpi.OPEN_MPI
    if "Intel(R) MPI" in version:
        return Mpi.INTEL
    if "MPICH" in version or "HYDRA" in version:
        return Mpi.MPICH
    raise UsageError(
        f"--mpi: this mpirun belongs to no known MPI ({' '.join(version.split())[:200]!r}); start "
        "the script with it yourself, or leave --mpi out: horovodrun starts the ranks without MPI"
    )


@dataclass(frozen=True)
class MpiJob:
    """Job that mpirun has to start.

    Attributes:
        slots: where each rank runs.
        command: of each rank.
        environ: of mpirun itself; the ranks get those of its variables that hold on any host.
        ssh: how to log in.
        network_interfaces: of the user's choice; empty for any.
        output_filename: for mpirun's files of what the ranks print; empty for none.
        timestamps: write the time in front of each line.
        binding_args, mpi_args: further options in the words of this MPI.
        as_root: whether this process runs as root.
    """

    slots: Sequence[Slot]
    command: Sequence[str]
    environ: Mapping[str, str] = field(repr=False)
    ssh: SshOptions = field(default_factory=SshOptions)
    network_interfaces: Sequence[str] = ()
    output_filename: str = ""
    timestamps: bool = False
    binding_args: str = ""
    mpi_args: str = ""
    as_root: bool = False

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """The hosts in the order of ranks, with the number of their ranks."""
        groups = itertools.groupby(self.slots, key=lambda slot: slot.hostname)
        return [(name, len(list(group))) for name, group in groups]

    @property
    def exported(self) -> list[str]:
        """The names of the variables that the ranks get, sorted."""
        return sorted(without_own(self.environ))

    @property
    def ssh_args(self) -> str:
        """The user's options for ssh, as one text; empty for none."""
        words = [] if self.ssh.port is None else ["-p", str(self.ssh.port)]
        words += ["-i", self.ssh.identity_file] if self.ssh.identity_file else []
        return shlex.join(words)


def mpirun_line(mpi: Mpi, job: MpiJob) -> list[str]:
    """The whole command.

    Raises:
        UsageError: this MPI cannot do what the job asks for.
    """
    named = sorted({slot.hostname for slot in job.slots if slot.user})
    if named:
        raise UsageError(f"--mpi: name the user of {', '.join(named)} in ssh_config, not with '@'")
    if mpi in (Mpi.MPICH, Mpi.INTEL):
        return _hydra_line(mpi, job)
    return _open_mpi_line(mpi, job)


def _open_mpi_line(mpi: Mpi, job: MpiJob) -> list[str]:
    new = mpi is Mpi.OPEN_MPI
    line = ["mpirun", *(["--allow-run-as-root"] if job.as_root else [])]
    line += _open_mpi_output(job) if new else _open_mpi_4_output(job)
    line += ["-np", str(len(job.slots)), "-H", _host_list(job)]
    default = "--bind-to socket --map-by socket --rank-by core"
    if mpi is not Mpi.SPECTRUM:
        default = "--bind-to none --map-by slot"
    line += shlex.split(job.binding_args or default)
    component, mca = ("plm_ssh", "--prtemca") if new else ("plm_rsh", "--mca")
    if job.ssh_args:
        line += [mca, f"{component}_args", job.ssh_args]
    if len(job.hosts) >= _MANY_HOSTS:
        line += [mca, f"{component}_no_tree_spawn", "true"]
        line += [mca, f"{component}_num_concurrent", str(len(job.hosts))]
    if job.network_interfaces:
        line += ["--mca", "btl_tcp_if_include", ",".join(job.network_interfaces)]
    for name in job.exported:
        line += ["-x", name]
    return [*line, *shlex.split(job.mpi_args), *job.command]


def _open_mpi_output(job: MpiJob) -> list[str]:
    words = ["tag", *(["timestamp"] if job.timestamps else [])]
    words += [f"file={job.output_filename}"] if job.output_filename else []
    return ["--output", ",".join(words)]


def _open_mpi_4_output(job: MpiJob) -> list[str]:
    words = ["--tag-output", *(["--timestamp-output"] if job.timestamps else [])]
    return words + (["--output-filename", job.output_filename] if job.output_filename else [])


def _hydra_line(mpi: Mpi, job: MpiJob) -> list[str]:
    counts = {count for _, count in job.hosts}
    if len(counts) > 1:
        raise UsageError(
            f"--mpi: {mpi.value} starts the same number of ranks on all hosts, but these get "
            f"{_host_list(job)}; choose -np and slots so, or leave --mpi out"
        )
    if len(job.network_interfaces) > 1:
        raise UsageError(
            f"--mpi: {mpi.value} takes one network interface, not "
            f"{', '.join(job.network_interfaces)}"
        )
    line = ["mpirun", "-l", "-np", str(len(job.slots)), "-ppn", str(counts.pop())]
    line += ["-hosts", ",".join(name for name, _ in job.hosts)]
    if mpi is Mpi.MPICH:
        line += ["-bind-to", "none"]
    if job.ssh_args:
        line += ["-bootstrap", "ssh", "-bootstrap-exec-args", job.ssh_args]
    for name in job.network_interfaces:
        line += ["-iface", name]
    if job.output_filename:
        line += ["-outfile-pattern", job.output_filename]
    # Whoever passes on everything would also pass on what only holds here.
    line += ["-genvlist", ",".join(job.exported)]
    return [*line, *shlex.split(job.mpi_args), *job.command]


def _host_list(job: MpiJob) -> str:
    bracketed = [(f"[{name}]" if ":" in name else name, count) for name, count in job.hosts]
    return ",".join(f"{name}:{count}" for name, count in bracketed)


def jsrun_line(job: MpiJob) -> list[str]:
    """The jsrun that starts the ranks on the hosts of an LSF allocation.

    Each host is one resource set with all of its cores and GPUs; ranks choose by local rank.

    Raises:
        UsageError: the hosts get different numbers of ranks.
    """
    counts = {count for _, count in job.hosts}
    if len(counts) > 1:
        raise UsageError(
            f"jsrun starts the same number of ranks on all hosts, but these get {_host_list(job)}: "
            "choose -np so, or use --gloo"
        )
    line = ["jsrun", "--nrs", str(len(job.hosts)), "--rs_per_host", "1"]
    line += ["--tasks_per_rs", str(counts.pop())]
    default = "--cpu_per_rs ALL_CPUS --gpu_per_rs ALL_GPUS --bind none"
    line += shlex.split(job.binding_args or default)
    if job.output_filename:
        line += ["--stdio_stdout", job.output_filename, "--stdio_stderr", job.output_filename]
    if job.mpi_args:
        line += ["--smpiargs", job.mpi_args]
    return [*line, *job.command]
