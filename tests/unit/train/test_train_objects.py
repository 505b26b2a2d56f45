"""Python objects between ranks."""

from __future__ import annotations

import ctypes
import mmap
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from thread_ranks import ThreadRanks, run_ranks

from horovod._rank import context
from horovod._train.numbering import JobNumber, LayerName, LayerNames, NameNumbers
from horovod._train.objects import agree, allgather_object, broadcast_object, gather_by_rank
from horovod._train.process_set import global_process_set
from horovod._train.waiting import wait_for_all
from horovod.errors import HorovodInternalError

_MAP_NORESERVE = 0x4000  # of Linux; the module mmap has it from Python 3.12 on only


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_roots_object_arrives_everywhere(size: int) -> None:
    def body(rank: int) -> None:
        group = context.global_group()
        for root in range(size):
            obj = {"rank": rank, "deep": [(rank, None), {"x": b"\0" * 1000}], "f": lambda: rank}
            got: dict[str, Any] = broadcast_object(group, obj, root)
            assert got["rank"] == root
            assert got["f"]() == root
            assert type(got["deep"][0]) is tuple
            assert (got is obj) == (rank == root)

    run_ranks(size, body)


def test_only_the_roots_object_is_looked_at() -> None:
    def body(rank: int) -> Any:
        mine = [1, 2] if rank == 1 else threading.Lock()
        return broadcast_object(context.global_group(), mine, 1)

    assert run_ranks(3, body) == [[1, 2]] * 3


@pytest.mark.parametrize("gather", [False, True])
def test_an_object_that_cannot_be_pickled_is_an_error_on_all_ranks(gather: bool) -> None:
    def body(rank: int) -> None:
        group = context.global_group()
        obj = threading.Lock() if rank == 0 else 5
        with pytest.raises((TypeError, HorovodInternalError)) as caught:
            allgather_object(group, obj) if gather else broadcast_object(group, obj, 0)
        assert (caught.type is TypeError) == (rank == 0)
        if rank:
            assert "rank 0 could not pickle it: TypeError" in str(caught.value)
        # The ranks are still in step.
        assert broadcast_object(group, rank, 1) == 1

    run_ranks(2, body)


def test_a_problem_of_one_rank_is_told_to_all() -> None:
    def body(rank: int) -> None:
        group = context.global_group()
        agree(group, "", "loading")
        with pytest.raises(HorovodInternalError, match="loading: rank 1: no such file"):
            agree(group, "no such file" if rank == 1 else "", "loading")

    run_ranks(3, body)


def test_ranks_that_have_joined_contribute_no_object() -> None:
    def body(rank: int) -> Any:
        group = context.global_group()
        if rank == 1:
            return group.join().wait()
        found = allgather_object(group, f"of {rank}"), gather_by_rank(group, rank)
        with pytest.raises(HorovodInternalError, match=r"loading: rank 2: no such file$"):
            agree(group, "no such file" if rank == 2 else "", "loading")
        group.join().wait()
        return found

    of_the_others = ["of 0", "of 2"], {0: 0, 2: 2}
    assert run_ranks(3, body) == [of_the_others, True, of_the_others]


class _SparseGroup:
    """Rank 1 of three ranks whose messages have the given length, nearly all of it untouched."""

    ranks = (0, 1, 2)
    rank = 1

    def __init__(self, length: int) -> None:
        self._length = length
        self._message = b"o" + pickle.dumps("found")  # what follows its end is not read

    def allgather(self, inputs: Any, *, name: str, **_: Any) -> Any:
        if name.endswith(".sz"):
            numbers = [number for rank in self.ranks for number in (rank, self._length)]
            data = b"".join(number.to_bytes(8, "little") for number in numbers)
            return self._handle(len(data), {0: data})
        length = self._length
        return self._handle(3 * length, {rank * length: self._message for rank in self.ranks})

    def broadcast(
        self, inputs: Any, outputs: Any, root: int, *, name: str, keep: Any, **_: Any
    ) -> Any:
        data = self._length.to_bytes(8, "little") if name.endswith(".sz") else self._message
        keep[: len(data)] = data
        return SimpleNamespace(wait=lambda: True)

    @staticmethod
    def _handle(num_bytes: int, parts: dict[int, bytes]) -> Any:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        memory = mmap.mmap(-1, num_bytes, flags)
        for start, data in parts.items():
            memory[start : start + len(data)] = data
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        array = SimpleNamespace(shape=(num_bytes,), address=address, memory=memory)
        return SimpleNamespace(wait=lambda: True, results=lambda: [array])


@pytest.mark.parametrize("length", [2**31 - 1, 2**31 + 3, 2**32 + 5])
def test_objects_may_have_more_bytes_than_an_int_counts(length: int) -> None:
    group: Any = _SparseGroup(length)
    assert allgather_object(group, "mine") == ["found"] * 3
    assert broadcast_object(group, "mine", 0) == "found"


def test_waiting_for_several_operations_raises_after_the_last() -> None:
    class Operation:
        def __init__(self, error: Exception | None) -> None:
            self.error = error
            self.waited = False

        def wait(self) -> None:
            self.waited = True
            if self.error:
                raise self.error

    operations = [
        Operation(None),
        Operation(HorovodInternalError("first")),
        Operation(HorovodInternalError("second")),
        Operation(None),
    ]
    with pytest.raises(HorovodInternalError, match="first"):
        wait_for_all(operations)  # type: ignore[arg-type]
    assert all(operation.waited for operation in operations)


def test_users_of_the_same_names_are_numbered() -> None:
    numbers = NameNumbers()
    with ThreadRanks(2) as ranks:
        for group in ranks.groups:
            assert numbers.number_for(["a", "b"], group) == 1
            assert numbers.number_for(["c"], group) == 1
            assert numbers.number_for(["b", "c"], group) == 2
            assert numbers.number_for(["a"], group) == 2
            assert numbers.number_for(["c", "a"], group) == 3
            assert numbers.number_for([], group) == 1
    with ThreadRanks(1) as ranks:
        assert numbers.number_for(["a"], ranks.groups[0]) == 1


def test_a_number_is_drawn_anew_in_each_job_in_the_order_of_use() -> None:
    numbers = NameNumbers()
    unused, kept = JobNumber(numbers, ["a"]), JobNumber(numbers, ["a"])
    with ThreadRanks(1) as first:
        assert [unused.within(first.groups[0]), kept.within(first.groups[0])] == [1, 2]
        assert kept.within(first.groups[0]) == 2
    with ThreadRanks(1) as second:
        assert kept.within(second.groups[0]) == 1
        assert JobNumber(numbers, ["a"]).within(second.groups[0]) == 2
        assert unused.within(second.groups[0]) == 3


def test_a_layer_of_an_earlier_job_keeps_its_name_to_itself() -> None:
    names = LayerNames("layer")

    def make(_: int) -> LayerName:
        return names.new(global_process_set)

    with ThreadRanks(1) as ranks:
        ((first, second),) = ranks.run(lambda rank: (make(rank), make(rank)))
    assert (first.text, second.text) == ("layer.1", "layer.2")
    with ThreadRanks(1) as ranks:
        assert ranks.run(lambda _: names.use(second, global_process_set)) == ["layer.2"]
        assert ranks.run(make)[0].text == "layer.3"
