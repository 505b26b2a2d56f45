"""Who gets which rank: examples, and what holds for every history of a job."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod._job.membership import Membership, Worker, assign_places
from horovod._job.place import Place
from horovod.errors import UsageError


def workers(text: str) -> list[Worker]:
    """From "a0 a1 b0#2": the host, the slot, and a number for its second or third process."""
    made = []
    for word in text.split():
        name, _, number = word.partition("#")
        made.append(Worker(f"{name}#{number or 1}", name[0], int(name[1:])))
    return made


def ranks(membership: Membership) -> str:
    return " ".join(each.worker.identity.removesuffix("#1") for each in membership.members)


def history(*generations: str) -> Membership:
    """The last of several generations."""
    last = None
    for number, text in enumerate(generations):
        last = assign_places(last, workers(text), number)
    assert last is not None
    return last


@pytest.mark.parametrize(
    ("generations", "expected"),
    [
        (["a0 a1 b0 b1"], "a0 a1 b0 b1"),
        (["b0 a0 b1 a1"], "b0 b1 a0 a1"),  # hosts in the order in which they were named
        (["a0 a1 b0 b1", "b1 b0 a1 a0"], "a0 a1 b0 b1"),  # later it does not matter
        (["a0 a1 b0 b1", "b0 b1"], "b0 b1"),
        (["a0 a1 b0 b1", "b0 b1", "c0 b0 b1 a0#2"], "b0 b1 c0 a0#2"),
        (["a0 a1 b0 b1", "b0 b1 a0#2 a1#2"], "b0 b1 a0#2 a1#2"),  # rank 0 has been there before
        (["a0 b0 c0", "a0 c0 d0"], "a0 d0 c0"),  # a new host in the gap
        (["a0 b0 c0", "a0 c0 d0 d1"], "a0 c0 d0 d1"),  # where it is too big for it
        (["a0 b0 b1", "a0 b1 c0"], "a0 c0 b1"),
        (["a0 b0 b1", "a0 b1 b0#2 c0"], "a0 b0#2 b1 c0"),
        (["a0 a1 a2", "a0 a2 a1#2"], "a0 a1#2 a2"),  # a new worker in the slot of the old one
        (["a0 a1", "a1 a0#2"], "a1 a0#2"),
        (["a0 b0 b1", "a0 b1 b0#2", "b1 b0#2"], "b1 b0#2"),  # the senior one first on its host
        (["a0 b0", "a0 a1 b0"], "a0 a1 b0"),  # neighbors, though b0 moves
    ],
)
def test_ranks(generations: list[str], expected: str) -> None:
    assert ranks(history(*generations)) == expected


def test_local_ranks_follow_the_slots() -> None:
    # a1 has rank 0, but a0#2 the lower slot: whoever pins GPU 1 keeps it.
    last = history("a0 a1 b0", "a1 a0#2 b0")
    assert ranks(last) == "a1 a0#2 b0"
    assert last.places == {
        "a1#1": Place(0, 3, 1, 2, 0, 1, 1),
        "a0#2": Place(1, 3, 0, 2, 0, 2, 1),
        "b0#1": Place(2, 3, 0, 1, 1, 2, 1),
    }


def test_every_choice_has_a_reason() -> None:
    last = history("a0 a1 b0 b1", "a0 b0 b1 c0 c1")
    assert [(each.worker.identity, each.reason) for each in last.members] == [
        ("a0#1", "keeps rank 0: nobody has been in the job for longer (generation 0)"),
        ("b0#1", "moves from rank 2 to 1: fewer ranks come before it, and those of a host are "
                 "neighbors"),
        ("b1#1", "moves from rank 3 to 2: fewer ranks come before it, and those of a host are "
                 "neighbors"),
        ("c0#1", "is new: takes rank 3, which was b1#1's"),
        ("c1#1", "is new: rank 4 did not exist before"),
    ]  # fmt: skip
    assert last.gone == {"a1#1": "a1#1, rank 1 of 4 in generation 0, is no longer available"}
    assert [each.since for each in last.members] == [0, 0, 0, 1, 1]
    moved = history("a0 b0", "b0").members[0]
    assert moved.reason.startswith("comes from rank 1 to rank 0: nobody has been in the job")


@pytest.mark.parametrize(
    ("generations", "words"),
    [
        ([""], "no worker is available for generation 0"),
        (["a0 a0"], "two workers have the same identity"),
        (["a0 a0#2"], "two workers have one slot"),
    ],
)
def test_what_makes_no_sense(generations: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        history(*generations)


def test_an_identity_stays_with_its_process() -> None:
    last = history("a0 b0")
    with pytest.raises(UsageError, match="cannot come back as"):
        assign_places(last, [dataclasses.replace(workers("a0")[0], host="b")], 1)
    with pytest.raises(UsageError, match="comes too late: the next one is 1"):
        assign_places(last, workers("a0"), 0)
    with pytest.raises(UsageError, match="needs an identity"):
        Worker("", "a")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 1}, "rank=1 of size=1"),
        ({"size": 0}, "rank=0 of size=0"),
        ({"local_rank": -1}, "local_rank=-1"),
        ({"size": 2, "local_size": 3}, "local_size=3 in a job of size=2"),
        ({"cross_size": 2}, "cross_size=2"),
        ({"generation": -1}, "generation -1"),
    ],
)
def test_places_make_sense(fields: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Place(**fields)


Steps = list[tuple[list[tuple[str, int]], set[tuple[str, int]]]]

# Per generation the slots that are taken, and those of them whose process is a new one.
slots = st.tuples(st.sampled_from("abcd"), st.integers(0, 3))
changes = st.lists(
    st.tuples(st.lists(slots, min_size=1, unique=True), st.sets(slots)), min_size=1, max_size=4
)


def lives(steps: Steps) -> list[Membership]:
    """A history in which processes come, stay and are replaced."""
    last: Membership | None = None
    numbers: dict[tuple[str, int], int] = {}
    present: set[tuple[str, int]] = set()
    made = []
    for generation, (taken, renewed) in enumerate(steps):
        for slot in taken:
            if slot not in present or slot in renewed:
                numbers[slot] = numbers.get(slot, 0) + 1
        present = set(taken)
        available = [Worker(f"{h}{s}#{numbers[h, s]}", h, s) for h, s in taken]
        last = assign_places(last, available, generation)
        made.append(last)
    return made


@settings(max_examples=50)
@given(changes)
def test_every_generation_is_in_order(steps: Steps) -> None:
    for (taken, _), membership in zip(steps, lives(steps), strict=True):
        assert {(m.worker.host, m.worker.slot) for m in membership.members} == set(taken)
        assert [m.place.rank for m in membership.members] == list(range(len(taken)))
        hosts = membership.hosts
        assert hosts == [host for name in dict.fromkeys(hosts) for host in hosts if host == name]
        for host in set(hosts):
            mine = [m for m in membership.members if m.worker.host == host]
            by_slot = sorted(mine, key=lambda m: m.worker.slot)
            assert [m.place.local_rank for m in by_slot] == list(range(len(mine)))
            assert {m.place.local_size for m in mine} == {len(mine)}
        for local_rank in range(4):
            across = [m.place for m in membership.members if m.place.local_rank == local_rank]
            assert [place.cross_rank for place in across] == list(range(len(across)))
            assert {place.cross_size for place in across} <= {len(across)}
        assert all(m.reason for m in membership.members)


@settings(max_examples=50)
@given(changes)
def test_rank_0_has_been_there_for_longest(steps: Steps) -> None:
    made = lives(steps)
    for last, now in itertools.pairwise(made):
        survivors = set(last.places) & set(now.places)
        assert now.members[0].since == min(m.since for m in now.members)
        if survivors:
            assert now.members[0].worker.identity in survivors
        if last.members[0].worker.identity in survivors:
            assert now.members[0].worker == last.members[0].worker
        assert set(now.gone) == set(last.places) - set(now.places)


@settings(max_examples=50)
@given(changes)
def test_survivors_keep_their_order(steps: Steps) -> None:
    made = lives(steps)
    for last, now in itertools.pairwise(made):
        leader = now.members[0].worker
        first_ranks = {host: last.hosts.index(host) for host in last.hosts}
        stayed = [m.worker for m in now.members if m.worker.identity in last.places]
        hosts = [host for host in dict.fromkeys(w.host for w in stayed) if host != leader.host]
        assert hosts == sorted(hosts, key=lambda host: first_ranks[host])
        for host in hosts:
            mine = [w.slot for w in stayed if w.host == host]
            assert mine == sorted(mine)


@settings(max_examples=50)
@given(changes)
def test_nobody_moves_without_a_cause(steps: Steps) -> None:
    last = lives(steps)[-1]
    same = [m.worker for m in reversed(last.members)]
    again = assign_places(last, same, last.generation + 1)
    assert [m.worker for m in again.members] == [m.worker for m in last.members]
    # New hosts come last, and so does one that comes instead of another one take its ranks.
    more = assign_places(last, [Worker("z0", "z"), *same], last.generation + 1)
    assert [m.worker for m in more.members[:-1]] == [m.worker for m in last.members]
    hosts = list(dict.fromkeys(last.hosts))
    if len(hosts) > 1:
        doomed = [m.worker for m in last.members if m.worker.host == hosts[1]]
        instead = [Worker(f"z{w.slot}", "z", w.slot) for w in doomed]
        rest = [w for w in same if w.host != hosts[1]]
        replaced = assign_places(last, [*instead, *rest], last.generation + 1)
        for identity, place in replaced.places.items():
            if identity in last.places:
                assert place.rank == last.places[identity].rank
