"""Assigns ranks in a generation, each with a reason. Pure: workers in, places out.

The rules, the strongest first:

1. Rank 0 took part in the last generation if any such worker lives: the one that has been in the
   job for longest. What it broadcasts is what training has reached.
2. The ranks of a host are contiguous.
3. A worker that stays keeps its rank if it can: hosts keep their order, workers of a host that of
   their slots. Newcomers take what became free, and come last otherwise.

Local ranks follow the slots of a host, so that a worker which chose its GPU by local rank shares it
with nobody who comes later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._job.place import Place
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Worker:
    """A process that can take part.

    Attributes:
        identity: names this process and no other, ever: see :func:`horovod._job.worker.join`.
        host: where it runs.
        slot: which of the places for a worker it uses there.
    """

    identity: str
    host: str
    slot: int = 0

    def __post_init__(self) -> None:
        if not self.identity or not self.host:
            raise UsageError(f"a worker needs an identity and a host, but this is {self!r}")


@dataclass(frozen=True)
class Member:
    """A worker with its place in a generation.

    Attributes:
        worker: the process.
        place: of it in this generation.
        since: the generation in which it came; the lower, the more senior.
        reason: why it has this place, in words.
    """

    worker: Worker
    place: Place
    since: int
    reason: str = ""


@dataclass(frozen=True)
class Membership:
    """A generation: all members, in the order of their ranks.

    Attributes:
        generation: from 0.
        members: one per rank.
        gone: why each member of the last generation that is none any more has no place, by
            identity.
    """

    generation: int
    members: tuple[Member, ...]
    gone: Mapping[str, str]

    def member(self, identity: str) -> Member | None:
        """The member of this identity; None if it has no place."""
        return next((member for member in self.members if member.worker.identity == identity), None)

    @property
    def places(self) -> dict[str, Place]:
        """The place of each member by its identity."""
        return {member.worker.identity: member.place for member in self.members}

    @property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return [member.worker.host for member in self.members]


def assign_places(
    previous: Membership | None, available: Sequence[Worker], generation: int
) -> Membership:
    """Gives every available worker a place. Pure and deterministic.

    Args:
        previous: the last generation; None for the first.
        available: the workers of this generation. Those of hosts that are new come in this order;
            else their order says nothing.
        generation: its number, above that of ``previous``.

    Raises:
        UsageError: there is no worker; one is there twice, or was on another host before; two
            have the same slot of a host; or the generation is not a later one.
    """
    before = {each.worker.identity: each for each in previous.members} if previous else {}
    _check(previous, available, generation)
    staying = [before[each.identity] for each in available if each.identity in before]
    first = min(staying, key=lambda each: (each.since, each.place.rank), default=None)
    blocks = _blocks(available, first)
    order = [worker for host in _order_of_hosts(blocks, staying, first) for worker in blocks[host]]
    places = _places(order, generation)
    members = tuple(
        Member(
            worker,
            place,
            before[worker.identity].since if worker.identity in before else generation,
            _reason(before.get(worker.identity), place, first, before.values()),
        )
        for worker, place in zip(order, places, strict=True)
    )
    here = {each.identity for each in available}
    gone = {
        identity: f"{identity}, {member.place}, is no longer available"
        for identity, member in before.items()
        if identity not in here
    }
    return Membership(generation, members, gone)


def _check(previous: Membership | None, available: Sequence[Worker], generation: int) -> None:
    if not available:
        raise UsageError(f"no worker is available for generation {generation}")
    least = previous.generation + 1 if previous else 0
    if generation < least:
        raise UsageError(f"generation {generation} comes too late: the next one is {least}")
    seen: dict[object, Worker] = {}
    for worker in available:
        for key in (worker.identity, (worker.host, worker.slot)):
            other = seen.setdefault(key, worker)
            if other is not worker:
                what = "the same identity" if other.identity == worker.identity else "one slot"
                raise UsageError(f"two workers have {what}: {other} and {worker}")
    for member in previous.members if previous else ():
        now = seen.get(member.worker.identity, member.worker)
        if now != member.worker:
            raise UsageError(
                f"{member.worker} cannot come back as {now}: an identity names one process, for "
                "ever"
            )


def _blocks(available: Sequence[Worker], first: Member | None) -> dict[str, list[Worker]]:
    """The workers of each host in the order of their ranks."""
    blocks: dict[str, list[Worker]] = {}
    for worker in available:
        blocks.setdefault(worker.host, []).append(worker)
    leader = first.worker if first else None
    for block in blocks.values():
        block.sort(key=lambda worker: (worker != leader, worker.slot))
    return blocks


def _order_of_hosts(
    blocks: Mapping[str, Sequence[Worker]], staying: Sequence[Member], first: Member | None
) -> list[str]:
    """The host of rank 0, then those that stay where they were, with new ones in the gaps."""
    # Where a host would have to begin so that its first worker that stays keeps its rank.
    starts: dict[str, int] = {}
    for member in sorted(staying, key=lambda each: (each is not first, each.place.rank)):
        host = member.worker.host
        starts.setdefault(host, member.place.rank - blocks[host].index(member.worker))
    old, new = list(starts), [host for host in blocks if host not in starts]
    order: list[str] = []
    num_ranks = 0
    for host in old:
        while order and (fits := _first_that_fits(new, blocks, starts[host] - num_ranks)):
            new.remove(fits)
            order.append(fits)
            num_ranks += len(blocks[fits])
        order.append(host)
        num_ranks += len(blocks[host])
    return order + new


def _first_that_fits(
    hosts: Sequence[str], blocks: Mapping[str, Sequence[Worker]], room: int
) -> str | None:
    return next((host for host in hosts if len(blocks[host]) <= room), None)


def _places(order: Sequence[Worker], generation: int) -> list[Place]:
    """Places from the order of ranks: the local rank is that of the slot on the host."""
    slots: dict[str, list[int]] = {}
    for worker in order:
        slots.setdefault(worker.host, []).append(worker.slot)
    for of_host in slots.values():
        of_host.sort()
    places = []
    for rank, worker in enumerate(order):
        local_rank = slots[worker.host].index(worker.slot)
        owners = [host for host, of_host in slots.items() if len(of_host) > local_rank]
        places.append(
            Place(
                rank=rank,
                size=len(order),
                local_rank=local_rank,
                local_size=len(slots[worker.host]),
                cross_rank=owners.index(worker.host),
                cross_size=len(owners),
                generation=generation,
            )
        )
    return places


def _reason(
    member: Member | None, place: Place, first: Member | None, before: Iterable[Member]
) -> str:
    """Return why a worker has its place."""
    if member is None:
        held = next((each for each in before if each.place.rank == place.rank), None)
        if first is None:
            return f"rank {place.rank} of the first members"
        if held is None:
            return f"is new: rank {place.rank} did not exist before"
        return f"is new: takes rank {place.rank}, which was {held.worker.identity}'s"
    if first is member:
        kept = "keeps" if member.place.rank == 0 else f"comes from rank {member.place.rank} to"
        return f"{kept} rank 0: nobody has been in the job for longer (generation {member.since})"
    if member.place.rank == place.rank:
        return f"keeps rank {place.rank}"
    way = "fewer" if place.rank < member.place.rank else "more"
    return (
        f"moves from rank {member.place.rank} to {place.rank}: {way} ranks come before it, and "
        "those of a host are neighbors"
    )
