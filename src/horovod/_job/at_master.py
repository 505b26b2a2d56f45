"""Lets ranks meet that torchrun, or a launcher like it, has started.

On one host they meet at an abstract socket of this user, without PyTorch. Between hosts they meet
at the store of PyTorch that MASTER_ADDR and MASTER_PORT name: that of torchrun, or one that rank 0
opens in its process, where ``init_process_group`` uses it, too.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from horovod._job.lent_store import StoreMeeting, is_loopback_name
from horovod._rendezvous.same_user import SameUserDoor, await_same_user
from horovod._rendezvous.secret import has_given_secret
from horovod.errors import StartError

if TYPE_CHECKING:
    from horovod._job.lent_store import LentStore, Meeting
    from horovod._settings.config import Config
    from horovod._settings.torch_variables import Master

_KEY_CHARACTERS = 32


def meet_at_master(config: Config, master: Master, deadline: float) -> Meeting:
    """Return the way in which the ranks of this job find each other.

    Args:
        config: of this rank.
        master: where they meet.
        deadline: in ``time.monotonic()``.

    Raises:
        StartError: PyTorch is needed and not installed, or the other ranks did not come in time.
    """
    key = hashlib.sha256(master.attempt.encode()).hexdigest()[:_KEY_CHARACTERS]
    if config.foreign_launcher is not None and config.foreign_launcher.one_host:
        return HostMeeting(key, config.rank, config.size, master)
    store = _store_at(master, config, deadline)
    is_local = not has_given_secret(config) and is_loopback_name(master.address)
    prefix = f"horovod/init/{key}"
    return StoreMeeting(store, prefix, config.rank, config.size, deadline, is_local=is_local)


class HostMeeting:
    """A meeting at a socket whose name all ranks of one host know.

    Args:
        key: names the job and its attempt.
        rank, size: of this process.
        master: for messages.

    Raises:
        StartError: on rank 0, another process has the name.
    """

    one_host = True

    def __init__(self, key: str, rank: int, size: int, master: Master) -> None:
        self._name = f"horovod-{os.geteuid()}-{key}"
        self._rank, self._size = rank, size
        self._what = f"the job of {size} ranks with MASTER_PORT={master.port}"
        self._door = SameUserDoor(self._name, self._what) if rank == 0 else None

    def share(self, text: str | None, deadline: float) -> str:
        """Do the same as :meth:`horovod._job.lent_store.Meeting.share`."""
        if text is None or self._door is None:
            return await_same_user(self._name, self._rank, self._what, deadline)
        self._door.give(text, range(1, self._size), deadline)
        return text

    def forget(self) -> None:
        """Keeps the name: a second job with the same variables must not take it meanwhile."""

    def close(self) -> None:
        """Gives the name back. Idempotent."""
        if self._door is not None:
            self._door.close()


def _store_at(master: Master, config: Config, deadline: float) -> LentStore:
    """Connect to the store at MASTER_ADDR, or open it as rank 0 if torchrun has not."""
    distributed = _import_distributed(config)
    left_s = max(1.0, deadline - time.monotonic())
    try:
        store: LentStore = distributed.TCPStore(
            master.address,
            master.port,
            config.size,
            is_master=config.rank == 0 and not master.agent_store,
            timeout=timedelta(seconds=left_s),
            multi_tenant=not master.agent_store,
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise StartError(
            f"rank {config.rank} of {config.size} did not reach the others at MASTER_ADDR="
            f"{master.address} MASTER_PORT={master.port}: {reason}"
        ) from error
    return store


def _import_distributed(config: Config) -> Any:
    try:
        # PyTorch's own protocol; a job that another launcher starts does not load it.
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        raise StartError(
            f"rank {config.rank} of {config.size} needs PyTorch to meet ranks on other hosts at "
            f"MASTER_ADDR and MASTER_PORT ({error}): install it, or give all ranks "
            "HOROVOD_RENDEZVOUS=host:port of rank 0's host and HOROVOD_SECRET_KEY (openssl rand "
            "-hex 32)"
        ) from None
