"""What the policy of an elastic job knows, and the questions it asks of that. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.runner.supervision.history import History

if TYPE_CHECKING:
    from horovod._job.membership import Membership
    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.failure import RankExit


@dataclass
class Facts:
    """All of it. A decision works on a copy of the last one's.

    Attributes:
        began_s: when the job began.
        gate_s: when it had its slots for the first time; None while it has not.
        hosts: by name, in the order of seniority.
        processes: those that have not ended, by number.
        next_number: of the next worker.
        membership: the current generation; None before the first.
        ranks: of its members, by identity.
        seniority: the numbers of its members, the most senior first.
        published_s: when it was published.
        broken_s: since when it cannot go on; None while it can.
        settled_s: when to expect no further losses.
        changes: why the next generation differs, in words.
        exits: of workers in this generation that failed by themselves.
        finished: members of this generation that ended well, as long as nobody was in the middle.
        cut: members of this generation that were lost or killed before their end, in words.
        entered: whether those who trained before have gone into the current generation; newcomers
            wait in it for them.
        unseen: generations that were replaced before anybody who trained went into them.
        told_broken: whether those who connect in the current generation know that it is broken.
        told_lost: the newest generation whose members know that one of them is lost; -1 for none.
        short_s: since when there have been too few workers.
        removal_s: since when there have been members that are to go.
        enough_s: since when there have been enough for the first generation.
        hears_running: whether workers say when they run.
        runs: whether all members of the current generation run.
        trained: whether this was ever so of any generation.
        stillborn: how many generations in a row never ran.
        stopped_s: when training stopped before the current generation; None if nobody knows.
        stands_s: how long a member of the current generation had no engine before it.
        stood_s: how long training stood still, in all.
        num_failures: of workers and hosts, in the whole job.
        any_started: whether a process of a worker ever ran.
        warned: whether the user knows that discovery fails.
        kept_slow: the identities of slow workers of which the user knows why they stay.
        gone_slow: how many workers went because they were slow.
        replayed: how many samples of each failed generation were done again, if any.
    """

    began_s: float
    gate_s: float | None = None
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    next_number: int = 0
    membership: Membership | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    seniority: tuple[int, ...] = ()
    published_s: float = 0.0
    broken_s: float | None = None
    settled_s: float = 0.0
    changes: tuple[str, ...] = ()
    exits: History[RankExit] = field(default_factory=History)
    finished: tuple[Process, ...] = ()
    cut: tuple[str, ...] = ()
    entered: bool = True
    unseen: frozenset[int] = frozenset()
    told_broken: bool = False
    told_lost: int = -1
    short_s: float | None = None
    removal_s: float | None = None
    enough_s: float | None = None
    hears_running: bool = False
    runs: bool = False
    trained: bool = False
    stillborn: int = 0
    stopped_s: float | None = None
    stands_s: float = 0.0
    stood_s: float = 0.0
    num_failures: int = 0
    any_started: bool = False
    warned: bool = False
    kept_slow: frozenset[str] = frozenset()
    gone_slow: int = 0
    replayed: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Facts:
        """For the next decision; what is inside of the collections never changes."""
        other = copy.copy(self)
        other.hosts, other.processes = dict(self.hosts), dict(self.processes)
        other.replayed = dict(self.replayed)
        return other

    def note_replayed(self, generation: int, samples: int) -> None:
        """All members of a generation go back over the same samples, so they count once."""
        if samples > self.replayed.get(generation, 0):
            self.replayed[generation] = samples

    @property
    def generation(self) -> int:
        """The number of the current generation; -1 before the first."""
        return -1 if self.membership is None else self.membership.generation

    @property
    def num_changes(self) -> int:
        """How often those who train have gone over to another generation."""
        waits = 0 if self.entered else 1
        return max(0, self.generation) - len(self.unseen) - waits

    @property
    def size(self) -> int:
        """Of the current generation."""
        return 0 if self.membership is None else len(self.membership.members)

    def by_identity(self, identity: str) -> Process | None:
        """The process of this identity; None if it has ended, or never was."""
        _, _, number = identity.rpartition("-")
        found = self.processes.get(int(number)) if number.isdecimal() else None
        return found if found is not None and found.identity == identity else None

    def is_member(self, process: Process) -> bool:
        """Whether a process has a place in the current generation."""
        return process.identity in self.ranks

    def counts(self, process: Process) -> bool:
        """Whether the job loses something with a process: it has trained, or nobody has yet."""
        return process.ran >= 0 or not self.trained

    def members(self) -> list[Process]:
        """The members of the current generation that have not ended, the most senior first."""
        return [self.processes[each] for each in self.seniority if each in self.processes]

    def alive(self) -> list[Process]:
        """The members that can go on, the most senior first."""
        return [each for each in self.members() if each.takes_part]

    def newcomers(self) -> list[Process]:
        """Those that are ready for their first place, in the order of their hosts and slots."""
        order = {name: index for index, name in enumerate(self.hosts)}
        ready = [
            each
            for each in self.processes.values()
            if each.takes_part
            and each.ready_s is not None
            and not each.leaving
            and self.wanted(each)
            and not self.is_member(each)
        ]
        return sorted(ready, key=lambda each: (order[each.host], each.worker.slot))

    def loading(self) -> list[Process]:
        """Those that are on their way to their first place."""
        return [each for each in self.processes.values() if each.loads and self.wanted(each)]

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
            each for each in self.alive() if each.slow and not each.leaving and self.wanted(each)
        ]

    def is_slow_host(self, host: str) -> bool:
        """Whether all that a host has in the generation is slow, so that it may be its fault."""
        here = [each for each in self.alive() if each.host == host]
        return bool(here) and all(each.slow for each in here)
