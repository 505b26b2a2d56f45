"""The hosts of an elastic job: which are listed, which rest after a failure. Pure."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.supervision.elastic.rules import Rules

NEVER_S = float("-inf")
# A host that leaves takes its workers with it before discovery drops it.
FORGIVE_S = 30.0
# A host that comes back for the second time within so long has to stay before it is used.
FLIP_S = 60.0
# A failure after so long a time is a first one.
FORGET_S = 3600.0


class Agent(Enum):
    """State of a host's agent."""

    NONE = "none"
    STARTING = "starting"
    RUNS = "runs"


@dataclass(frozen=True)
class Host:
    """A host that discovery listed, now or before.

    Attributes:
        name: of the host.
        slots: how many workers it may have; 0 once it is no longer listed.
        listed: whether it is.
        missed: in how many answers in a row it has been missing.
        agent: what its agent does.
        stopping: why its agent ends what runs there; empty if it does not.
        failures: how often it was at fault.
        failed_at: when it was for the last time.
        rests_until: when it may have new workers again; infinite for never.
        spent: slots whose workers ended well without a place: they have nothing to do.
        suspect: whether its other workers are to end because of a failure.
        slow_until: until when slots rest whose workers were slow; each with its slot.
        times_slow: how often a worker of it went because it was slow.
        dropped_at: when discovery dropped it for the last time.
        returns: how often it came back since, each time within FLIP_S.
        steady_at: when it may be used, if it is listed until then.
    """

    name: str
    slots: int
    listed: bool = True
    missed: int = 0
    agent: Agent = Agent.NONE
    stopping: str = ""
    failures: int = 0
    failed_at: float = NEVER_S
    rests_until: float = NEVER_S
    spent: frozenset[int] = frozenset()
    suspect: bool = False
    slow_until: tuple[tuple[int, float], ...] = ()
    times_slow: int = 0
    dropped_at: float = NEVER_S
    returns: int = 0
    steady_at: float = NEVER_S

    def usable(self, at_s: float) -> bool:
        """Whether new workers may be started here."""
        return self.listed and not self.stopping and at_s >= max(self.rests_until, self.steady_at)

    def rests(self, at_s: float) -> bool:
        """Whether it is only a matter of time that it is usable again."""
        return self.listed and at_s < self.rests_until < float("inf")

    @property
    def comes_and_goes(self) -> bool:
        """Whether it was listed and dropped again and again."""
        return self.steady_at > NEVER_S

    def wants(self, slot: int) -> bool:
        """Whether a worker that has this slot is to stay."""
        return self.listed and not self.stopping and slot < self.slots

    def slot_rests_until(self, slot: int) -> float:
        """When a slot may have a new worker again although its last one was slow."""
        return dict(self.slow_until).get(slot, NEVER_S)


def after_answer(
    hosts: Mapping[str, Host], answer: Sequence[tuple[str, int]], at_s: float, missed_polls: int
) -> dict[str, Host]:
    """The hosts after an answer of discovery: known ones keep their order, new ones come last.

    A host that is dropped starts afresh when it comes back, and if it failed just before, that was
    because it left.
    """
    slots: dict[str, int] = {}
    for name, number in answer:
        slots[name] = max(0, number)
    after: dict[str, Host] = {}
    for name, host in hosts.items():
        if name in slots and host.listed:
            more = slots[name] > host.slots
            spent = frozenset() if more else host.spent
            after[name] = replace(host, slots=slots[name], missed=0, spent=spent)
        elif name not in slots:
            missed = host.missed + 1
            dropped = host.listed and missed >= missed_polls
            after[name] = _dropped(host, at_s) if dropped else replace(host, missed=missed)
    for name, number in slots.items():
        if name not in after:
            known = _returned(hosts.get(name, Host(name, 0)), at_s)
            after[name] = replace(known, slots=number, listed=True, missed=0, spent=frozenset())
    return after


def _dropped(host: Host, at_s: float) -> Host:
    forgiven = at_s - host.failed_at <= FORGIVE_S
    failures = host.failures - 1 if forgiven else host.failures
    return replace(
        host,
        listed=False,
        slots=0,
        failures=max(0, failures),
        rests_until=NEVER_S,
        suspect=False,
        slow_until=(),
        dropped_at=at_s,
    )


def _returned(host: Host, at_s: float) -> Host:
    if at_s - host.dropped_at > FLIP_S:
        return replace(host, returns=0, steady_at=NEVER_S)
    returns = host.returns + 1
    steady_at = at_s + min(FLIP_S, 2.0**returns) if returns > 1 else NEVER_S
    return replace(host, returns=returns, steady_at=steady_at)


def blamed(host: Host, at_s: float, rules: Rules) -> Host:
    """A host after a failure; one that rests already failed for the same reason."""
    if at_s < host.rests_until:
        return replace(host, suspect=True)
    failures = 1 if at_s - host.failed_at > FORGET_S else host.failures + 1
    until = at_s + rules.rest_s(host.name, failures)
    return replace(host, failures=failures, failed_at=at_s, rests_until=until, suspect=True)
