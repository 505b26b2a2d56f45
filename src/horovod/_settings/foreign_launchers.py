"""Which program started this process as one of several, as its variables tell. Pure.

Our own launcher says all that a rank must know. Others say the rank, the number of ranks and a
name of the job, and some lend a channel over which the ranks can tell each other the rest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._settings import torch_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.torch_variables import Master


@dataclass(frozen=True)
class ForeignLauncher:
    """The variables with which a launcher that is not ours describes a job.

    Attributes:
        name: for messages.
        job: a text that no other job of this user has at the same time; empty if there is none.
        pmi_fd: a connection that speaks the PMI-1 protocol; None if there is none.
        pmix_folders: where PMIx's library may lie; empty if the launcher does not speak PMIx.
        one_host: whether all ranks are certainly on one host.
        master: where the ranks meet, if the variables are those of torchrun.
    """

    name: str
    job: str = ""
    pmi_fd: int | None = None
    pmix_folders: tuple[str, ...] = ()
    one_host: bool = False
    master: Master | None = None


_Found = tuple[ForeignLauncher, tuple[str, str], tuple[str, str]]


@dataclass(frozen=True)
class _Kind:
    """The names that one launcher uses."""

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    job: tuple[str, ...] = ()
    num_hosts: str = ""
    half_is_wrong: bool = False


# In this order: mpirun inside a Slurm job leaves the variables of both. In the script of a Slurm
# batch job SLURM_PROCID and SLURM_NTASKS are set, too, but nobody started several of it.
_KINDS = (
    _Kind(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
        half_is_wrong=True,
    ),
    _Kind(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "JSM_NAMESPACE_LOCAL_RANK",
        "JSM_NAMESPACE_LOCAL_SIZE",
        ("LSB_JOBID", "PMIX_NAMESPACE"),
    ),
    _Kind(
        "MPICH",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        half_is_wrong=True,
    ),
    _Kind(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        num_hosts="SLURM_STEP_NUM_NODES",
    ),
    # Kubernetes tells the index of a pod only; the manifest has to say how many there are.
    _Kind("Kubernetes", "JOB_COMPLETION_INDEX", "HOROVOD_SIZE"),
)

# Processes that our launcher or an executor has started; it tells all that they must know.
_OURS = ("HOROVOD_RANK", "HOROVOD_ELASTIC", "HOROVOD_WORKER_ID")
_PMIX_FOLDERS = ("OMPI_LIBDIR_LOC", "PMIX_PREFIX")


def find_foreign_launcher(
    variables: Mapping[str, str],
) -> _Found | None:
    """Finds the launcher of this process.

    torchrun is followed before all others, as it starts the processes itself wherever it runs;
    what else sets RANK and WORLD_SIZE, after those that know more than one rank.

    Args:
        variables: of the environment.

    Returns:
        The launcher, and the names of its variables for rank and size, in the job and on the host
        (empty if it has none), of which one may be missing; None for a process of our own launcher,
        or of nobody.
    """
    if any(variables.get(name) for name in _OURS):
        return None
    if torch_variables.is_of_torchrun(variables):
        return _torch_launcher(variables)
    found = _find_kind(variables)
    is_alone = found is None or variables.get(found[1][1]) == "1"
    if is_alone and torch_variables.announces_ranks(variables):
        return _torch_launcher(variables)
    return found


def check_launchers(variables: Mapping[str, str], found: _Found | None) -> str:
    """Compare the launcher of this process with what PyTorch's variables say.

    Args:
        variables: of the environment.
        found: the launcher, as :func:`find_foreign_launcher` returned it.

    Returns:
        A warning that RANK and WORLD_SIZE are ignored; empty if they are not, or say the same.

    Raises:
        StartError: they describe a job in part; the message names the variables.
    """
    if any(variables.get(name) for name in _OURS):
        return ""
    if found is not None and found[0].master is None:
        return torch_variables.warn_of_contradiction(variables, found[1])
    torch_variables.check_torch_variables(variables)
    return ""


def _torch_launcher(variables: Mapping[str, str]) -> _Found:
    launcher = ForeignLauncher(
        "torchrun"
        if torch_variables.is_of_torchrun(variables)
        else "the launcher that set WORLD_SIZE",
        one_host=torch_variables.is_one_host(variables),
        master=torch_variables.master_in(variables),
    )
    names = (torch_variables.rank_name(variables), torch_variables.WORLD_SIZE)
    return launcher, names, ("", "")


def _find_kind(variables: Mapping[str, str]) -> _Found | None:
    for kind in _KINDS:
        given = [name for name in (kind.rank, kind.size) if variables.get(name)]
        if len(given) == 2 or (given and kind.half_is_wrong):
            local = (kind.local_rank, kind.local_size)
            return _foreign_launcher(kind, variables), (kind.rank, kind.size), local
    return None


def _foreign_launcher(kind: _Kind, variables: Mapping[str, str]) -> ForeignLauncher:
    parts = [variables.get(name, "") for name in kind.job]
    size = variables.get(kind.size, "")
    pmi_fd = variables.get("PMI_FD", "")
    folders = [variables[name] for name in _PMIX_FOLDERS if variables.get(name)]
    return ForeignLauncher(
        name=kind.name,
        job="-".join(parts) if parts and all(parts) else "",
        pmi_fd=int(pmi_fd) if pmi_fd.isascii() and pmi_fd.isdigit() else None,
        pmix_folders=("", *folders) if variables.get("PMIX_NAMESPACE") else (),
        one_host=variables.get(kind.local_size) == size != ""
        or variables.get(kind.num_hosts) == "1",
    )


@dataclass(frozen=True)
class _Unserved:
    """The signs that a launcher which Horovod does not join started several processes."""

    name: str
    size: str
    rank: str
    remedy: str = "start the script with horovodrun"


_UNSERVED = (
    _Unserved("torchrun or a launcher like it", "WORLD_SIZE", "RANK"),
    _Unserved("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "start the script with srun or horovodrun"),
    _Unserved("JAX", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    _Unserved("MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    _Unserved("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    _Unserved("MXNet's launcher", "DMLC_NUM_WORKER", "DMLC_WORKER_ID"),
)


def warn_of_unserved_launcher(variables: Mapping[str, str]) -> str:
    """Say that another launcher started several processes, each of which is a job of one rank.

    Args:
        variables: of the environment of a process that no launcher known to Horovod started.

    Returns:
        A warning that names the variables; empty if this process is alone, or another one of the
        same launcher prints it.
    """
    for launcher in _UNSERVED:
        size = variables.get(launcher.size, "")
        if not _is_above(size, 1):
            continue
        if _is_above(variables.get(launcher.rank, ""), 0):
            return ""
        names = [name for name in (launcher.size, launcher.rank) if variables.get(name)]
        shown = ", ".join(f"{name}={variables[name]}" for name in names)
        return _alone(launcher.name, size, shown, launcher.remedy)
    return _warn_of_tf_config(variables)


def _warn_of_tf_config(variables: Mapping[str, str]) -> str:
    """Read the variable of TensorFlow's own strategies: hosts by role, and the place among them."""
    try:
        described = json.loads(variables.get("TF_CONFIG", ""))
        cluster, task = described["cluster"], described.get("task", {})
        size = sum(len(cluster.get(role, ())) for role in ("chief", "master", "worker"))
        leads = task.get("type") in ("chief", "master") or (
            not {"chief", "master"} & set(cluster) and str(task.get("index", 0)) == "0"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    if size < 2 or not leads:
        return ""
    return _alone("TensorFlow", str(size), "TF_CONFIG", _Unserved.remedy)


def _alone(launcher: str, size: str, shown: str, remedy: str) -> str:
    return (
        f"this process is a job of one rank and trains alone, but {launcher} announces {size} "
        f"processes ({shown}): Horovod does not join them; {remedy}, or unset the variables"
    )


def _is_above(text: str, limit: int) -> bool:
    return text.isascii() and text.isdigit() and int(text) > limit
