"""Rank 0 says what the network between the hosts costs: once of the first steps, then of all."""

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
_MOST_WINDOWS = 256
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

    If that is worth a line, it also says in the end what the later windows have shown.

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
        self._first_windows: list[NetworkCost] = []
        self._told: NetworkCost | None = None
        self._later_windows: list[NetworkCost] = []
        self._num_later, self._every = 0, 1

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
        cost = self._between(last, now)
        if self._told is not None:
            self._keep(cost)
            return
        self._first_windows.append(cost)
        if len(self._first_windows) < _WINDOWS:
            return
        usual = _usual(self._first_windows[1:])
        if usual.is_much:
            self._told = usual
            _logger.warning("slow network: %s", usual.text())
        else:
            self.is_over = True

    def end(self) -> None:
        """Log what a step usually took, beside what was said after the first ones."""
        if self._told is None or len(self._later_windows) < _WINDOWS:
            return
        _logger.warning(
            "slow network: in the whole job, a step usually took %s, and %s without the network; "
            "after the first steps, %s and %s were expected",
            *_usual(self._later_windows).times(),
            *self._told.times(),
        )

    def _between(self, last: Counters, now: Counters) -> NetworkCost:
        steps = now.steps - last.steps
        # A collective sends as much as it receives. What exceeds that is of others, such as data
        # that a loader reads from a file server.
        moved_bytes = min(
            now.received_bytes - last.received_bytes, now.sent_bytes - last.sent_bytes
        )
        return from_measurements(
            hosts=self._hosts,
            bytes_per_s=self._bytes_per_s,
            step_s=(now.at_s - last.at_s) / steps,
            waited_s=(now.waited_s - last.waited_s) / steps,
            moved_bytes=moved_bytes / steps,
        )

    def _keep(self, cost: NetworkCost) -> None:
        """Keep every window, then every second one, and so on: a job may run for weeks."""
        if self._num_later % self._every == 0:
            self._later_windows.append(cost)
        self._num_later += 1
        if len(self._later_windows) == _MOST_WINDOWS:
            del self._later_windows[1::2]
            self._every *= 2


def _usual(costs: list[NetworkCost]) -> NetworkCost:
    """Return the one in the middle: other windows may hold an evaluation or a checkpoint."""
    return sorted(costs, key=lambda each: each.alone_s / each.step_s)[len(costs) // 2]
