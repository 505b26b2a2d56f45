"""Tells the launcher of the values that ``hvd.log`` has averaged, for those who watch the job."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from horovod._rendezvous.logged import LOGGED_KEY, MOST_VALUES, Logged
from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.config import Config

INTERVAL_S = 1.0
# A launcher that does not answer must not hold up the destinations for long.
_TIMEOUT_S = 2.0


class LoggedReport:
    """The reports of rank 0; for one thread. Ends by itself if the launcher does not answer.

    Args:
        config: says where the store is.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store: StoreClient | None = None
        self._is_possible = bool(config.rendezvous_addr)
        self._latest: Logged | None = None
        self._has_news = False
        self._told_at = float("-inf")

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """Report the latest value of each name; later, if the last report was a moment ago.

        Args:
            step: of the values.
            values: by name.
        """
        earlier = {} if self._latest is None else self._latest.values
        together = {**earlier, **values}
        self._latest = Logged(step, dict(islice(together.items(), MOST_VALUES)))
        self._has_news = True
        if time.monotonic() - self._told_at >= INTERVAL_S:
            self._send()

    def close(self) -> None:
        """Report what has not been reported, and end the connection."""
        self._send()
        if self._store is not None:
            self._store.close()
        self._is_possible = False

    def _send(self) -> None:
        has_news, self._has_news = self._has_news, False
        if self._latest is None or not (has_news and self._is_possible):
            return
        self._told_at = time.monotonic()
        config = self._config
        try:
            if self._store is None:
                where = config.rendezvous_addr, config.rendezvous_port
                self._store = StoreClient(*where, secret_of(config), _TIMEOUT_S)
            self._store.set(LOGGED_KEY, self._latest.to_json())
        except (StartError, OSError):  # a launcher that is gone ends the rank in other ways
            self._is_possible = False
