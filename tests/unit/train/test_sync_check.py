"""Comparing arrays between ranks: what differs, where, and how it is said."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from thread_ranks import run_ranks

from horovod._rank import context
from horovod._rank.group import Group
from horovod._train import sync_check
from horovod._train.sync_check import Array, PendingCheck, differences_between, fingerprints_of
from horovod.errors import HorovodInternalError, ReplicasDivergedError, UsageError


def array(name: str, data: bytes, layout: str = "uint8 (4,)") -> Array:
    return Array(name, layout, len(data), lambda: data)


def check(mine: list[Array]) -> ReplicasDivergedError | None:
    """Compares in the job of this thread."""
    try:
        sync_check.check_in_sync(context.global_group(), mine)
    except ReplicasDivergedError as error:
        return error
    return None


def errors_of(everyones: list[list[Array]]) -> list[ReplicasDivergedError | None]:
    return run_ranks(len(everyones), lambda rank: check(everyones[rank]))


def test_fingerprints_depend_on_name_layout_and_every_byte() -> None:
    arrays = [
        array("a", b"1234"),
        array("b", b"1234"),
        array("a", b"1234", "uint8 (2, 2)"),
        array("a", b"1235"),
        array("a", b"0234"),
        array("a", b"12340"),
    ]
    digests = {one.fingerprint().digest for one in arrays}
    assert len(digests) == len(arrays)
    assert array("a", b"1234").fingerprint() == arrays[0].fingerprint()
    assert {len(digest) for digest in digests} == {8}


def test_large_arrays_have_the_same_fingerprints_as_one_by_one() -> None:
    arrays = [array(str(i), bytes([i]) * (5 << 20)) for i in range(3)]
    assert fingerprints_of(arrays) == [one.fingerprint() for one in arrays]


def test_a_name_must_not_be_given_twice() -> None:
    with pytest.raises(UsageError, match="'a' is given more than once"):
        fingerprints_of([array("a", b""), array("b", b""), array("a", b"")])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_equal_arrays_pass(size: int) -> None:
    mine = [array("weight", b"1234"), array("empty", b"")]
    # The order does not matter, and a NaN equals itself.
    everyones = [mine[:: -1 if rank % 2 else 1] for rank in range(size)]
    assert errors_of(everyones) == [None] * size
    assert errors_of([[]] * size) == [None] * size


def test_the_rank_outside_of_the_majority_is_named_on_all_ranks() -> None:
    everyones = [[array("w", b"1234"), array("b", b"1")] for _ in range(3)]
    everyones[1][1] = array("b", b"2")
    errors = errors_of(everyones)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert error is not None
        assert (error.tensors, error.ranks) == (("b",), ((1,),))
        assert "'b' on rank 1" in str(error)
        assert isinstance(error, HorovodInternalError)


def test_a_tie_goes_to_the_lowest_rank() -> None:
    errors = errors_of([[array("w", b"x")], [array("w", b"y")]])
    assert [error and error.ranks for error in errors] == [((1,),)] * 2
    four = [[array("w", data)] for data in (b"x", b"y", b"y", b"x")]
    assert [error and error.ranks for error in errors_of(four)] == [((1, 2),)] * 4


def test_layouts_and_missing_arrays_are_told_by_name() -> None:
    errors = errors_of(
        [
            [array("w", b"1234", "float32 (1,)"), array("new", b"")],
            [array("w", b"1234", "int32 (1,)"), array("old", b"")],
            [array("w", b"1234", "float32 (1,)"), array("old", b"")],
        ]
    )
    assert len({str(error) for error in errors}) == 1
    error = errors[2]
    assert error is not None
    assert error.tensors == ("w", "new", "old")
    assert error.ranks == ((1,), (0,), (0,))
    assert "'w' is float32 (1,) on ranks 0, 2, int32 (1,) on rank 1" in str(error)
    assert "'old' is missing on rank 0, uint8 (4,) on ranks 1, 2" in str(error)


def test_the_first_eight_are_named_and_the_rest_counted() -> None:
    everyones = [[array(f"w{i}", bytes([rank])) for i in range(11)] for rank in range(2)]
    for error in errors_of(everyones):
        assert error is not None
        assert error.tensors == tuple(f"w{i}" for i in range(8))
        assert str(error).startswith("11 tensors")
        assert "and 3 more" in str(error)


def test_one_operation_for_any_number_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    allgather = Group.allgather

    def counted(self: Group, *args: Any, **options: Any) -> Any:
        names.append(options["name"])
        return allgather(self, *args, **options)

    monkeypatch.setattr(Group, "allgather", counted)
    for num_arrays in (1, 500):
        names.clear()
        assert errors_of([[array(str(i), b"x") for i in range(num_arrays)]] * 2) == [None] * 2
        assert names == ["check_in_sync"] * 2


def test_a_verdict_can_be_read_later() -> None:
    def body(rank: int) -> str:
        group = context.global_group()
        pending = PendingCheck(group, fingerprints_of([array("w", bytes([rank]))]), "later")
        group.barrier().wait()
        with pytest.raises(ReplicasDivergedError, match="'w' on rank 1") as caught:
            pending.finish()
        return str(caught.value)

    assert len(set(run_ranks(2, body))) == 1


def test_differences_are_found_without_any_rank() -> None:
    a, b = sync_check._Entry(b"l", b"1"), sync_check._Entry(b"l", b"2")
    assert differences_between([{b"n": a}, {b"n": a}]) == []
    assert differences_between([{b"n": a}, {b"n": b}, {b"n": b}]) == [
        sync_check.Difference(b"n", (0,), False)
    ]
    assert differences_between([{}, {b"n": b}, {b"n": b}]) == [
        sync_check.Difference(b"n", (0,), True)
    ]


def test_the_error_travels_between_processes() -> None:
    error = ReplicasDivergedError("w differs", ("w",), ((1,),))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.tensors, copy.ranks) == ("w differs", ("w",), ((1,),))


def test_digests_in_a_table_are_compared_between_ranks_that_have_not_joined() -> None:
    table = np.arange(1, 17, dtype=np.int64).reshape(1, 4, 4).repeat(4, 0)
    names = ["a", "b", "c", "d"]
    sync_check.check_digests(names, table, (0, 2, 4, 6))
    table[1] = 0  # has joined
    sync_check.check_digests(names, table, (0, 2, 4, 6))
    table[3, 2, 1] = 0
    with pytest.raises(ReplicasDivergedError, match=r"1 tensors .* 'c' on rank 6\.") as caught:
        sync_check.check_digests(names, table, (0, 2, 4, 6))
    assert (caught.value.tensors, caught.value.ranks) == (("c",), ((6,),))
