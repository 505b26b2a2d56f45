"""The states of an elastic job, and what is known in each. Pure.

    Starting        no generation has begun: the job waits for slots, then for workers on them
    Running         the members of a generation connect, or train
    Replacing       the generation has lost a member: once all have given it up, the next one begins
    ShortOfWorkers  too few are left for a next generation: the job waits for others

and, as of any job, Stopping, Killing and Over (:mod:`horovod.runner.supervision.stopping`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod._base import fast_dataclass
from horovod.runner.supervision.policy import State

if TYPE_CHECKING:
    from horovod._job.membership import Membership
    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.failure import RankExit


@dataclass
class Start:
    """Known until the first generation begins.

    Attributes:
        slots_at: when the job had its slots; None while it has too few.
        enough_at: since when there have been enough workers; None while there are too few.
        is_announced: whether the user knows that there are too few slots.
    """

    slots_at: float | None = None
    enough_at: float | None = None
    is_announced: bool = False


@dataclass
class Generation:
    """Known of the current generation; before the first one, of those who gather for it.

    Attributes:
        membership: its members; None before the first.
        ranks: by identity.
        seniority: the numbers of its members, the most senior first.
        published_at: when it was published.
        is_entered: whether those who trained before have gone into it; newcomers wait in it for
            them.
        runs: whether all members run.
        stood_s: how long one of its members had no engine before it.
        changes: why the next generation differs, in words.
        exits: of workers that failed by themselves.
        finished: members that ended well, as long as nobody was in the middle.
        cut: members that were lost or killed before their end, in words.
        is_told_broken: whether those who connect in it know that it is broken.
        removal_at: since when there have been members that are to go.
    """

    membership: Membership | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    seniority: tuple[int, ...] = ()
    published_at: float = 0.0
    is_entered: bool = True
    runs: bool = False
    stood_s: float = 0.0
    changes: tuple[str, ...] = ()
    exits: tuple[RankExit, ...] = ()
    finished: tuple[Process, ...] = ()
    cut: tuple[str, ...] = ()
    is_told_broken: bool = False
    removal_at: float | None = None

    @property
    def number(self) -> int:
        """Its number; -1 before the first."""
        return -1 if self.membership is None else self.membership.generation

    @property
    def size(self) -> int:
        """The number of its ranks."""
        return 0 if self.membership is None else len(self.membership.members)


@dataclass
class Loss:
    """Known since the current generation can no longer train.

    Attributes:
        since: when that began.
        short_at: since when there have been too few workers for the next one; None if not.
    """

    since: float
    short_at: float | None = None


@dataclass
class Job:
    """Known of the whole job.

    Attributes:
        began_at: when it began.
        next_number: of the next worker.
        settled_at: when to expect no further losses.
        hears_running: whether workers say when they run.
        has_trained: whether all members of a generation ever ran.
        any_started: whether a process of a worker ever ran.
        told_lost: the newest generation whose members know that one of them is lost; -1 for none.
        unseen: generations that were replaced before anybody who trained went into them.
        stillborn: how many generations in a row never ran.
        stopped_at: when training stopped before the current generation; None if nobody knows.
        stood_s: how long training stood still, in all.
        num_failures: of workers and hosts.
        is_warned: whether the user knows that discovery fails.
        kept_slow: the identities of slow workers of which the user knows why they stay.
        gone_slow: how many workers went because they were slow.
        replayed: how many samples of each failed generation were done again, if any.
        awaits: what the next generation waits for, in words.
    """

    began_at: float
    next_number: int = 0
    settled_at: float = 0.0
    hears_running: bool = False
    has_trained: bool = False
    any_started: bool = False
    told_lost: int = -1
    unseen: frozenset[int] = frozenset()
    stillborn: int = 0
    stopped_at: float | None = None
    stood_s: float = 0.0
    num_failures: int = 0
    is_warned: bool = False
    kept_slow: frozenset[str] = frozenset()
    gone_slow: int = 0
    replayed: dict[int, int] = field(default_factory=dict)
    awaits: str = ""

    def note_replayed(self, generation: int, samples: int) -> None:
        """All members of a generation go back over the same samples, so they count once."""
        if samples > self.replayed.get(generation, 0):
            self.replayed[generation] = samples


@dataclass
class Facts:
    """All that is known. A decision works on a copy of the last one's.

    Attributes:
        job: what holds for all of it.
        start: what holds until the first generation; None afterwards.
        generation: what holds for the current generation.
        loss: what holds since it has lost a member, or one gave it up; None if it has not.
        hosts: by name, in the order of seniority.
        processes: the workers that have not ended, by number.
    """

    job: Job
    start: Start | None = field(default_factory=Start)
    generation: Generation = field(default_factory=Generation)
    loss: Loss | None = None
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)

    def copy(self) -> Facts:
        """Copy for the next decision; what is inside of the collections never changes."""
        job = copy.copy(self.job)
        job.replayed = dict(job.replayed)
        return Facts(
            job,
            copy.copy(self.start),
            copy.copy(self.generation),
            copy.copy(self.loss),
            dict(self.hosts),
            dict(self.processes),
        )

    @property
    def num_changes(self) -> int:
        """Number of times that training has moved to another generation."""
        waits = 0 if self.generation.is_entered else 1
        return max(0, self.generation.number) - len(self.job.unseen) - waits

    def by_identity(self, identity: str) -> Process | None:
        """The process of this identity; None if it has ended, or never was."""
        _, _, number = identity.rpartition("-")
        found = self.processes.get(int(number)) if number.isdecimal() else None
        return found if found is not None and found.identity == identity else None

    def is_member(self, process: Process) -> bool:
        """Whether a process has a place in the current generation."""
        return process.identity in self.generation.ranks

    def counts(self, process: Process) -> bool:
        """Whether the job loses something with a process: it has trained, or nobody has yet."""
        return process.ran >= 0 or not self.job.has_trained

    def members(self) -> list[Process]:
        """The members of the current generation that have not ended, the most senior first."""
        numbers, processes = self.generation.seniority, self.processes
        return [processes[number] for number in numbers if number in processes]

    def alive(self) -> list[Process]:
        """The members that can go on, the most senior first."""
        return [process for process in self.members() if process.takes_part]

    def is_entered(self) -> bool:
        """Whether the members have gone into the current generation, and have to give it up.

        All old members go at the same time, so one of them tells for all.
        """
        return self.generation.is_entered or not any(process.ran >= 0 for process in self.alive())

    def newcomers(self) -> list[Process]:
        """Those that are ready for their first place, in the order of their hosts and slots."""
        order = {name: index for index, name in enumerate(self.hosts)}
        ready = [
            process
            for process in self.processes.values()
            if process.takes_part
            and process.ready_at is not None
            and not process.leaving
            and self.wanted(process)
            and not self.is_member(process)
        ]
        return sorted(ready, key=lambda each: (order[each.host], each.worker.slot))

    def loading(self) -> list[Process]:
        """Those that are on their way to their first place."""
        return [
            process for process in self.processes.values() if process.loads and self.wanted(process)
        ]

    def wanted(self, process: Process) -> bool:
        """Whether the host of a process, and its slot, still belong to the job."""
        host = self.hosts.get(process.host)
        return host is not None and host.wants(process.worker.slot)

    def stays(self, process: Process) -> bool:
        """Whether nothing speaks against a place in the next generation."""
        fit = process.takes_part and not process.leaving and not process.slow
        return fit and self.wanted(process)

    def slow(self) -> list[Process]:
        """Members that are to go for no other reason than that they make the others wait."""
        return [
            process
            for process in self.alive()
            if process.slow and not process.leaving and self.wanted(process)
        ]

    def is_slow_host(self, host: str) -> bool:
        """Whether all that a host has in the generation is slow, so that it may be its fault."""
        here = [process for process in self.alive() if process.host == host]
        return bool(here) and all(process.slow for process in here)


@fast_dataclass.dataclass(frozen=True, kw_only=True)
class Going(State):
    """Nothing has ended the job.

    Attributes:
        facts: what is known; never changed.
    """

    facts: Facts

    @property
    def awaits_hosts(self) -> bool:
        """Whether the job goes on although no host has an agent: others may come."""
        return True


class Starting(Going):
    """No generation has begun: the job waits for slots, then for workers on them."""


class Running(Going):
    """The members of a generation connect, or train."""


class Replacing(Going):
    """The generation has lost a member: once all have given it up, the next one begins."""


class ShortOfWorkers(Replacing):
    """Too few are left for a next generation: the job waits for others."""


def state_of(facts: Facts, deadline_at: float | None) -> Going:
    """Return the state of a job that goes on."""
    if facts.start is not None:
        return Starting(deadline_at=deadline_at, facts=facts)
    if facts.loss is None:
        return Running(deadline_at=deadline_at, facts=facts)
    kind = Replacing if facts.loss.short_at is None else ShortOfWorkers
    return kind(deadline_at=deadline_at, facts=facts)
