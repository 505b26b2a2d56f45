"""Rank 0 says once what the network between the hosts costs the first steps of a job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rank.reports.network_cost import from_measurements

if TYPE_CHECKING:
    from horovod._rank.reports.network_cost import NetworkCost

_logger = logging.getLogger(__name__)

# The first window has what is done once: compilation, caches, workers that load data.
_WINDOWS = 4
_FEWEST_STEPS = 3


@dataclass(frozen=True)
class Counters:
    """What a rank has counted so far.

    Attributes:
        at_s: when, in ``time.monotonic()``.
        steps: of training.
        waited_s: that it waited for communication.
        received_bytes, sent_bytes: of its host.
    """

    at_s: float
    steps: int
    waited_s: float
    received_bytes: int
    sent_bytes: int


class NetworkWatch:
    """Compares windows of at least three steps, and says the median of three.

    Args:
        hosts: of the job.
        bytes_per_s: measured speed of the link, in one direction; 0 if it is not known.

    Attributes:
        is_over: whether there is nothing left to find out.
    """

    def __init__(self, hosts: int, bytes_per_s: float) -> None:
        self.is_over = hosts < 2 or bytes_per_s <= 0
        self._hosts, self._bytes_per_s = hosts, bytes_per_s
        self._last: Counters | None = None
        self._found: list[NetworkCost] = []

    def look(self, now: Counters) -> None:
        """Take note of the counters, from time to time; log the cost once it is known."""
        last = self._last
        if self.is_over or (last is None and now.steps < 1):
            return
        if last is not None and now.steps - last.steps < _FEWEST_STEPS:
            return
        self._last = now
        if last is None:
            return
        steps = now.steps - last.steps
        # A collective sends as much as it receives. What exceeds that is of others, such as data
        # that a loader reads from a file server.
        moved_bytes = min(
            now.received_bytes - last.received_bytes, now.sent_bytes - last.sent_bytes
        )
        cost = from_measurements(
            hosts=self._hosts,
            bytes_per_s=self._bytes_per_s,
            step_s=(now.at_s - last.at_s) / steps,
            waited_s=(now.waited_s - last.waited_s) / steps,
            moved_bytes=moved_bytes / steps,
        )
        self._found.append(cost)
        if len(self._found) < _WINDOWS:
            return
        self.is_over = True
        usual = sorted(self._found[1:], key=lambda each: each.alone_s / each.step_s)[1]
        if usual.is_much:
            _logger.warning("slow network: %s", usual.text())
