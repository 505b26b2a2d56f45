"""Holds the user's rules for an elastic job. Pure."""

from __future__ import annotations

import random

from horovod._base.fast_dataclass import dataclass
from horovod.errors import UsageError
from horovod.runner.protocol.agent_job import DEFAULT_GRACE_S


@dataclass(frozen=True)
class Words:
    """Names of the rules in messages; by default the flags of ``horovodrun``."""

    np: str = "-np"
    min_np: str = "--min-np"
    max_np: str = "--max-np"
    elastic_timeout: str = "--elastic-timeout"
    worker_timeout: str = "--worker-timeout"
    reset_limit: str = "--reset-limit"
    slow_worker: str = "--slow-worker"


@dataclass(frozen=True)
class Rules:
    """The user's rules for an elastic job. All times are in seconds.

    Attributes:
        np: the slots for which the start waits; at most ``max_np`` of them if that is less.
        min_np: the fewest ranks with which the job goes on.
        max_np: the most; None for as many as there are slots.
        elastic_timeout_s: how long to wait for slots, and for workers on them.
        gate_timeout_s: how long to wait for slots before the start; 0 for as long as later.
        reset_limit: how many generations may follow the first; None for any number.
        cooldown_range: how long a host rests after its first failure (up to twice that), and the
            longest rest, after many. None: it gets no worker again, unless discovery drops it.
        grace_s: how long workers may take to end after a signal, or when they are dismissed.
        worker_timeout_s: how long a worker may show no sign of life. One that lives, but does not
            give up a generation that is broken, has the elastic timeout.
        missed_polls: in how many answers of discovery in a row a host must be missing.
        fixed_hosts: whether no other host can ever come.
        spare_neighbors: whether the other workers of a host that failed go on in any case, and not
            only if there would be fewer than ``min_np`` ranks without them.
        slow_worker: what becomes of a worker that makes the others wait: "off" and "report" leave
            it, "replace" starts another one in its place, "remove" goes on without it.
        settle_s: how long after a loss to wait for further ones.
        seed: of the random part of rests.
        words: what the user calls these.

    Raises:
        UsageError: these contradict one another.
    """

    np: int
    min_np: int = 0
    max_np: int | None = None
    elastic_timeout_s: float = 600.0
    gate_timeout_s: float = 0.0
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    grace_s: float = DEFAULT_GRACE_S
    worker_timeout_s: float = 60.0
    missed_polls: int = 1
    fixed_hosts: bool = False
    spare_neighbors: bool = False
    slow_worker: str = "report"
    settle_s: float = 0.1
    seed: int = 0
    words: Words = Words()

    def __post_init__(self) -> None:
        words = self.words
        if self.np < 1:
            raise UsageError(f"an elastic job needs at least one rank, but {words.np} is {self.np}")
        if not self.min_np:
            object.__setattr__(self, "min_np", self.np)
        if not self.gate_timeout_s:
            object.__setattr__(self, "gate_timeout_s", self.elastic_timeout_s)
        if not 1 <= self.min_np <= self.np:
            raise UsageError(
                f"{words.min_np} {self.min_np} is not between 1 and {words.np} {self.np}"
            )
        if self.max_np is not None and self.max_np < self.min_np:
            raise UsageError(
                f"{words.max_np} {self.max_np} is less than {words.min_np} {self.min_np}"
            )
        if self.cooldown_range is not None:
            least, most = self.cooldown_range
            if not 1 <= least <= most <= 3600:
                raise UsageError(
                    f"the cool-down range {least:g} {most:g} is not two ascending numbers of "
                    "seconds from 1 to 3600"
                )
        if self.missed_polls < 1:
            raise UsageError(f"a host cannot be missing in {self.missed_polls} answers")

    @property
    def most(self) -> float:
        """The most ranks, as a number."""
        return float("inf") if self.max_np is None else self.max_np

    @property
    def gate(self) -> int:
        """The slots without which the job does not start."""
        return int(min(self.np, self.most))

    def rest_s(self, host: str, failures: int) -> float:
        """Return the rest of a host after its failures: doubled each time, up to a limit."""
        if self.cooldown_range is None:
            return float("inf")
        least, most = self.cooldown_range
        share = random.Random(f"{self.seed} {host} {failures}").random()
        return float(min(most, least * 2.0 ** min(failures - 1, 20) + share * least))
