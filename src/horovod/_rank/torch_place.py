"""Tells PyTorch in this process where its rank is, if no launcher has.

``torch.distributed.init_process_group`` reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. ``horovodrun`` sets them where it knows the ranks before they start.
In an elastic job ranks change, and under mpirun, srun or in Kubernetes somebody else starts them:
there each process writes them itself, whenever it has met the other ranks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from horovod._rendezvous.reserved_port import reserve_port
from horovod._settings.config import inherited_environment, set_environment
from horovod._settings.torch_variables import (
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    RANK,
    WORLD_SIZE,
)

if TYPE_CHECKING:
    import socket

    from horovod._settings.config import Config

_logger = logging.getLogger(__name__)


class TorchPlace:
    """The variables of PyTorch in the environment of this process.

    Variables that the launcher or the user has set stay: all of them if one of RANK, WORLD_SIZE,
    LOCAL_RANK and LOCAL_WORLD_SIZE is there, otherwise MASTER_ADDR and MASTER_PORT.
    """

    def __init__(self) -> None:
        self._written: dict[str, str] = {}
        self._reserved: socket.socket | None = None

    def offer_port(self, config: Config) -> int:
        """Reserve a port at which the store of PyTorch may listen in this process.

        Each call reserves another one, as the store of the ranks that met before may still be
        open.

        Args:
            config: the settings of this rank.

        Returns:
            The port, which the other ranks must be told; 0 on other ranks than rank 0, and if the
            variables are set by others or the job needs none.
        """
        if config.rank != 0 or not _is_of_launcher(config) or self._is_set_by_others():
            return 0
        try:
            reserved = reserve_port()
        except OSError as error:
            _logger.warning(
                "RANK, MASTER_PORT and the other variables of torch.distributed are not set, as no "
                "port is free: %s",
                error,
            )
            return 0
        self.close()
        self._reserved = reserved
        return int(reserved.getsockname()[1])

    def write(self, config: Config, address: str, port: int) -> None:
        """Write the variables of a job that this process has joined.

        Args:
            config: the settings of this rank, with its place on its host.
            address, port: where rank 0 may listen; port 0 writes nothing.
        """
        if not port or not _is_of_launcher(config) or self._is_set_by_others():
            return
        master = {MASTER_ADDR: address, MASTER_PORT: str(port)}
        written = {name: text for name, text in master.items() if not self._is_of_others(name)}
        written |= {
            RANK: str(config.rank),
            WORLD_SIZE: str(config.size),
            LOCAL_RANK: str(config.local_rank),
            LOCAL_WORLD_SIZE: str(config.local_size),
        }
        set_environment(written)
        self._written = written

    def close(self) -> None:
        """Give the reserved port back; the variables stay. Idempotent."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _is_set_by_others(self) -> bool:
        return any(map(self._is_of_others, (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE)))

    def _is_of_others(self, name: str) -> bool:
        value = inherited_environment().get(name)
        return bool(value) and value != self._written.get(name)


def _is_of_launcher(config: Config) -> bool:
    """Whether somebody has started this process as a rank; not so for a script that runs alone."""
    if config.is_lent:
        return False
    return config.size > 1 or config.elastic or config.foreign_launcher is not None
