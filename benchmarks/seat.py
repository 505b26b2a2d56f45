"""One rank of a benchmark, for all libraries that it measures."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from horovod._rendezvous import StoreClient, read_secret
from horovod._settings.config import Config

EXCHANGE_TIMEOUT_S = 300.0


class Seat:
    """One rank's place in a benchmark: who it is, and how it agrees with the others.

    Ranks agree through the job's store, which belongs to none of the measured libraries and lets
    waiting ranks sleep.

    Attributes:
        rank, size: of this process in the job.
        address: of this host, where the other ranks can reach it.
    """

    def __init__(self) -> None:
        config = Config.from_env()
        self.rank, self.size = config.rank, config.size
        secret = read_secret(config.secret_file)
        self._store = StoreClient(config.rendezvous_addr, config.rendezvous_port, secret)
        self.address = self._store.local_address
        self._num_exchanges = 0
        torch.set_num_threads(1)

    def set(self, key: str, value: Any) -> None:
        """Stores what JSON can hold."""
        self._store.set(f"benchmark/{key}", json.dumps(value).encode())

    def get(self, key: str, timeout_s: float) -> Any:
        """Waits for a stored value; sleeps meanwhile."""
        return json.loads(self._store.get(f"benchmark/{key}", timeout_s))

    def exchange(self, value: Any) -> list[Any]:
        """Returns the values of all ranks in rank order; so it is a barrier, too.

        Args:
            value: anything that JSON can hold.
        """
        number = self._num_exchanges
        self._num_exchanges += 1
        self.set(f"{number}/{self.rank}", value)
        return [self.get(f"{number}/{rank}", EXCHANGE_TIMEOUT_S) for rank in range(self.size)]

    def say(self, line: str) -> None:
        """Prints a line about the progress, on rank 0 only."""
        if self.rank == 0:
            print(line, file=sys.stderr, flush=True)
