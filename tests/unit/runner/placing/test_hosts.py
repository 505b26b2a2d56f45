from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.errors import UsageError
from horovod.runner.placing.hosts import Host, Slot, assign, parse_hostfile, parse_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("localhost:4", [Host("localhost", 4)]),
        (
            "worker-0:2,worker-1.example.org:4",
            [Host("worker-0", 2), Host("worker-1.example.org", 4)],
        ),
        (" a:1 , b:2 ", [Host("a", 1), Host("b", 2)]),
        ("localhost", [Host("localhost", None)]),
        ("10.0.0.1:3", [Host("10.0.0.1", 3)]),
        ("[::1]:2", [Host("::1", 2)]),
        ("[fe80::1%eth0]", [Host("fe80::1%eth0", None)]),
        ("a:1,b:1,a:2", [Host("a", 3), Host("b", 1)]),
        ("a,a", [Host("a", 2)]),
        ("a:1,", [Host("a", 1)]),
        ("a:1,b:0,a:0,c", [Host("a", 1), Host("c", None)]),
        ("me@a:1,first.last@[::1]:2", [Host("a", 1, "me"), Host("::1", 2, "first.last")]),
    ],
)
def test_parse_hosts(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a:", "a:x", "a:1:2", "::1", "@a:1", "a@b@c", "-o@a:1", "-o:1", "a b", "a:-1"]
)
def test_parse_hosts_quotes_what_it_cannot_read(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the host") as caught:
        parse_hosts(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hosts_without_slots_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "horovod"):
        assert parse_hostfile("a slots=0\nb slots=2\nc:0\nb:0\na:0", "f") == [Host("b", 2)]
    assert caplog.messages == ["hosts with 0 slots get no rank: a, c"]
    assert parse_hosts("a:0", least_slots=0) == [Host("a", 0)]
    for text in ("a:0", "a:0,b:0"):
        with pytest.raises(UsageError, match=r"no host of .* has a slot: give 'a' at least one"):
            parse_hosts(text)


@pytest.mark.parametrize("text", ["a:1,,b:1", ",a:1", "a:1,,", ","])
def test_a_host_between_commas_is_missing(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the host ''"):
        parse_hosts(text)


def test_parse_hostfile() -> None:
    text = "# cluster\n10.0.0.1 slots=8\n\n10.0.0.2 slots=8 max_slots=9  # big\n10.0.0.3\n"
    assert parse_hostfile(text, "f") == [
        Host("10.0.0.1", 8),
        Host("10.0.0.2", 8),
        Host("10.0.0.3", None),
    ]


def test_parse_hostfile_reads_what_other_launchers_write() -> None:
    text = "me@a:2\nb max-slots=3\n[::1] slots=1\na slots=1\n".replace("\na ", "\nme@a ")
    assert parse_hostfile(text, "f") == [Host("a", 3, "me"), Host("b", 3), Host("::1", 1)]


@pytest.mark.parametrize(
    "line", ["a slot=1", "a slots=x", "a slots", "a:1 slots=2", "a slots=-1", "a b"]
)
def test_parse_hostfile_refuses_fields_that_it_does_not_know(line: str) -> None:
    with pytest.raises(UsageError, match="f, line 1"):
        parse_hostfile(line, "f")


def test_a_host_has_one_user() -> None:
    with pytest.raises(UsageError, match="two users, 'me' and 'nobody'"):
        parse_hosts("me@a:1,a:1")
    assert {slot.user for slot in assign(parse_hosts("me@a:2"), 2)} == {"me"}


def test_parse_hostfile_names_the_line() -> None:
    with pytest.raises(UsageError, match="f, line 2"):
        parse_hostfile("a slots=1\nb slots=many\n", "f")
    with pytest.raises(UsageError, match="names no host"):
        parse_hostfile("# nothing\n", "f")


def test_assign_with_different_hosts() -> None:
    slots = assign(parse_hosts("worker-0:1,worker-1:2"), 3)
    assert slots == [
        Slot(0, 3, 0, 1, 0, 2, "worker-0"),
        Slot(1, 3, 0, 2, 1, 2, "worker-1"),
        Slot(2, 3, 1, 2, 0, 1, "worker-1"),
    ]


def test_assign_starts_no_more_than_requested() -> None:
    slots = assign(parse_hosts("a:4,b:4"), 2)
    assert [slot.hostname for slot in slots] == ["a", "a"]
    assert slots[0].local_size == 2
    assert slots[0].cross_size == 1


def test_assign_gives_a_single_host_without_slots_all_ranks() -> None:
    assert [slot.local_rank for slot in assign([Host("a", None)], 3)] == [0, 1, 2]
    assert len(assign([Host("a", None), Host("b", None)], 2)) == 2


def test_assign_names_requested_and_available() -> None:
    with pytest.raises(UsageError, match=r"5 ranks .* only 3 slots .* a:1, b:2"):
        assign(parse_hosts("a:1,b:2"), 5)
    with pytest.raises(UsageError, match="0 ranks"):
        assign(parse_hosts("a:1"), 0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_assign_is_consistent(capacities: list[int], data: st.DataObject) -> None:
    hosts = [Host(f"h{index}", slots) for index, slots in enumerate(capacities)]
    num_proc = data.draw(st.integers(1, sum(capacities)))
    slots = assign(hosts, num_proc)
    assert [slot.rank for slot in slots] == list(range(num_proc))
    assert {slot.size for slot in slots} == {num_proc}
    for slot in slots:
        mates = [each for each in slots if each.hostname == slot.hostname]
        assert [each.local_rank for each in mates] == list(range(slot.local_size))
        owners = [each for each in slots if each.local_rank == slot.local_rank]
        assert [each.cross_rank for each in owners] == list(range(slot.cross_size))
