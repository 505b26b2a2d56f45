"""The variables with which torchrun, and launchers like it, describe a job. Pure.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set by torchrun, ``accelerate launch``, Kubeflow's
PyTorchJob and Ray Train, and by many scripts; Lightning's own launcher leaves RANK out.
TORCHELASTIC_RUN_ID comes from torchrun alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

RANK, WORLD_SIZE = "RANK", "WORLD_SIZE"
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
MASTER_ADDR, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"
_NODE_RANK = "NODE_RANK"
_RUN_ID, _RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


@dataclass(frozen=True)
class Master:
    """The place where the ranks of such a job meet.

    Attributes:
        address, port: of the store of rank 0, or of torchrun; empty and 0 if they are not set.
        agent_store: whether the store runs already, in torchrun.
        attempt: a text that differs between the jobs at this address, and between the rounds in
            which torchrun starts the ranks of one job.
    """

    address: str
    port: int
    agent_store: bool
    attempt: str


def is_of_torchrun(variables: Mapping[str, str]) -> bool:
    """Whether torchrun itself has started this process as one of its ranks."""
    return bool(variables.get(_RUN_ID) and variables.get(WORLD_SIZE))


def announces_ranks(variables: Mapping[str, str]) -> bool:
    """Whether the variables describe more than one rank."""
    size = variables.get(WORLD_SIZE, "").strip()
    return bool(size) and size != "1" and not _is_without_meaning(variables)


def _is_without_meaning(variables: Mapping[str, str]) -> bool:
    """Whether WORLD_SIZE is there alone: scripts export it for purposes of their own."""
    return not any(variables.get(name) for name in (RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT))


def rank_name(variables: Mapping[str, str]) -> str:
    """Return the variable that holds the rank.

    Lightning's launcher gives the ranks of the first host their LOCAL_RANK only.
    """
    if not variables.get(RANK) and variables.get(LOCAL_RANK) and variables.get(_NODE_RANK) == "0":
        return LOCAL_RANK
    return RANK


def is_one_host(variables: Mapping[str, str]) -> bool:
    """Whether all ranks are certainly on one host."""
    return variables.get(LOCAL_WORLD_SIZE) == variables.get(WORLD_SIZE)


def master_in(variables: Mapping[str, str]) -> Master:
    """Return the place where the ranks meet."""
    port = variables.get(MASTER_PORT, "").strip()
    parts = [variables.get(name, "") for name in (_RUN_ID, _RESTARTS, WORLD_SIZE)]
    return Master(
        variables.get(MASTER_ADDR, "").strip(),
        int(port) if port.isascii() and port.isdigit() else 0,
        variables.get(_AGENT_STORE) == "True",
        "/".join([*parts, port]),
    )


def check_torch_variables(variables: Mapping[str, str]) -> None:
    """Refuse variables that describe a job in part.

    Args:
        variables: of the environment of a process that no other launcher has started.

    Raises:
        StartError: the message names the variables.
    """
    rank, size = variables.get(RANK, "").strip(), variables.get(WORLD_SIZE, "").strip()
    if rank.isdigit() and not size:
        raise StartError(
            f"RANK={rank} is set but WORLD_SIZE is not: set both, or unset RANK for a job of one "
            "rank"
        )
    if announces_ranks(variables) and not variables.get("HOROVOD_RENDEZVOUS"):
        _check_master(variables)


def warn_of_contradiction(variables: Mapping[str, str], other: tuple[str, str]) -> str:
    """Say that RANK and WORLD_SIZE are ignored because another launcher says something else.

    Args:
        variables: of the environment.
        other: the variables for rank and size of the launcher that is followed.

    Returns:
        A warning; empty if there is no contradiction.
    """
    own = [variables.get(name, "").strip() for name in (RANK, WORLD_SIZE)]
    theirs = [variables.get(name, "").strip() for name in other]
    if not all(own) or not all(theirs) or own[1] == "1" or own == theirs:
        return ""
    return (
        f"RANK={own[0]} and WORLD_SIZE={own[1]} are ignored, as {other[0]}={theirs[0]} and "
        f"{other[1]}={theirs[1]} of another launcher contradict them: unset those that do not "
        "describe this job"
    )


def _check_master(variables: Mapping[str, str]) -> None:
    missing = [name for name in (MASTER_ADDR, MASTER_PORT) if not variables.get(name, "").strip()]
    size = variables[WORLD_SIZE]
    if missing:
        raise StartError(
            f"WORLD_SIZE={size} announces several ranks, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set, so they cannot meet: start the "
            "script with torchrun or horovodrun, or unset WORLD_SIZE for a job of one rank"
        )
    if not 0 < master_in(variables).port < 65536:
        raise StartError(f"MASTER_PORT={variables[MASTER_PORT]} is not a port")
