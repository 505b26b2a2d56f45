"""The variables with which ``jax.distributed`` and ``keras.distribution`` describe a job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
KERAS_ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
KERAS_COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"
KERAS_PROCESS = "KERAS_DISTRIBUTION_PROCESS_ID"


@dataclass(frozen=True)
class JaxProcess:
    """A rank of horovodrun as ``jax.distributed`` sees it.

    Attributes:
        coordinator: host and port where rank 0 listens.
        count: number of ranks.
        index: the rank.
    """

    coordinator: str
    count: int
    index: int


def jax_process_in(variables: Mapping[str, str]) -> JaxProcess | None:
    """Return what ``jax.distributed`` must know about this rank; None without horovodrun.

    Args:
        variables: of the environment.
    """
    coordinator = variables.get(COORDINATOR, "")
    rank, size = variables.get("HOROVOD_RANK", ""), variables.get("HOROVOD_SIZE", "")
    if not (coordinator and rank.isdigit() and size.isdigit()):
        return None
    return JaxProcess(coordinator, int(size), int(rank))
