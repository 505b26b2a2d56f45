"""What gloo does not have, and works in flight: futures, timeouts, errors on all ranks."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from thread_groups import horovod_group
from thread_ranks import ThreadRanks

from horovod.errors import HorovodInternalError, MismatchError, StalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horovod.torch.distributed import EngineWork, ProcessGroupHorovod

SIZE = 3
OPS = dist.ReduceOp


def run(function: Callable[[ProcessGroupHorovod, int], Any], size: int = SIZE) -> list[Any]:
    """Call a function with the group of each rank, and its rank."""
    with ThreadRanks(size) as ranks:
        return ranks.run(lambda rank: function(horovod_group(ranks.groups[rank]), rank))


def reduced(group: ProcessGroupHorovod, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    group.allreduce([tensor], options).wait()
    return tensor


def test_average() -> None:
    def average(group: ProcessGroupHorovod, rank: int) -> list[list[float]]:
        floats = reduced(group, torch.full((2,), 1.5 * rank), OPS.AVG)
        integers = reduced(group, torch.full((2,), 2 * rank), OPS.AVG)
        return [floats.tolist(), integers.tolist()]

    assert run(average) == [[[1.5, 1.5], [2, 2]]] * SIZE


def test_factor_before_the_sum() -> None:
    op = dist._make_nccl_premul_sum(0.5)
    assert (
        run(lambda group, rank: reduced(group, torch.tensor([2.0 * rank]), op).item()) == [3.0] * 3
    )


def test_complex_and_bool_and_bytes_of_float8() -> None:
    def move(group: ProcessGroupHorovod, rank: int) -> bool:
        total = reduced(group, torch.tensor([1 + 2j, rank], dtype=torch.complex64), OPS.SUM)
        assert total.tolist() == [3 + 6j, 3]
        either = reduced(group, torch.tensor([rank == 1, False]), OPS.MAX)
        assert either.tolist() == [True, False]
        eights = [torch.zeros(4).to(torch.float8_e4m3fn) for _ in range(SIZE)]
        group.allgather([eights], [torch.full((4,), float(rank)).to(torch.float8_e4m3fn)]).wait()
        assert [tensor.float().tolist() for tensor in eights] == [[float(r)] * 4 for r in range(3)]
        with pytest.raises(UsageError, match="does not reduce this dtype"):
            reduced(group, eights[0], OPS.SUM)
        return True

    assert run(move) == [True] * SIZE


def test_uneven_lists() -> None:
    def exchange(group: ProcessGroupHorovod, rank: int) -> list[list[float]]:
        gathered = [torch.zeros(source + 1) for source in range(SIZE)]
        group.allgather([gathered], [torch.full((rank + 1,), float(rank))]).wait()
        inputs = [torch.full((to + rank + 1,), 10.0 * rank + to) for to in range(SIZE)]
        received = [torch.zeros(rank + source + 1) for source in range(SIZE)]
        group.alltoall(received, inputs).wait()
        share = torch.zeros(rank + 1)
        group.reduce_scatter([share], [[torch.ones(to + 1) * to for to in range(SIZE)]]).wait()
        return [tensor.tolist() for tensor in (*gathered, *received, share)]

    for rank, lists in enumerate(run(exchange)):
        gathered, received, share = lists[:SIZE], lists[SIZE:-1], lists[-1]
        assert gathered == [[float(source)] * (source + 1) for source in range(SIZE)]
        assert received == [[10.0 * s + rank] * (rank + s + 1) for s in range(SIZE)]
        assert share == [float(SIZE * rank)] * (rank + 1)


def test_many_in_flight_waited_for_in_reverse() -> None:
    def flight(group: ProcessGroupHorovod, rank: int) -> list[float]:
        tensors = [torch.full((64,), float(number + rank)) for number in range(40)]
        works = [group.allreduce([tensor]) for tensor in tensors]
        for work in reversed(works):
            work.wait()
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None
        return [tensor[0].item() for tensor in tensors]

    assert run(flight) == [[3.0 * number + 3 for number in range(40)]] * SIZE


def test_future_completes_without_a_caller() -> None:
    def future(group: ProcessGroupHorovod, rank: int) -> tuple[float, bool]:
        called = threading.Event()
        tensor = torch.ones(5000)
        future = group.allreduce([tensor]).get_future()
        doubled = future.then(lambda ended: ended.value()[0] * 2)
        doubled.add_done_callback(lambda _: called.set())
        assert called.wait(20)
        return doubled.value()[0].item(), future.done()

    assert run(future) == [(6.0, True)] * SIZE


def test_results_are_moved_once_before_the_future_completes() -> None:
    def gathered(group: ProcessGroupHorovod, rank: int) -> list[float]:
        outputs = [torch.zeros(2, 2).t() for _ in range(SIZE)]
        work = group.allgather([outputs], [torch.full((2, 2), float(rank))])
        ended = work.get_future().wait()
        assert [tensor.data_ptr() for tensor in ended] == [t.data_ptr() for t in outputs]
        outputs[0].fill_(7.0)
        work.wait()
        return [tensor[0, 0].item() for tensor in outputs]

    assert run(gathered) == [[7.0, 1.0, 2.0]] * SIZE


def test_mismatch_names_rank_operation_and_line() -> None:
    def differ(group: ProcessGroupHorovod, rank: int) -> str:
        work = group.broadcast([torch.zeros(3)]) if rank == 1 else group.allreduce([torch.zeros(3)])
        with pytest.raises(MismatchError) as caught:
            work.wait()
        error = work.exception()
        assert error is caught.value
        future = work.get_future()
        with pytest.raises(RuntimeError, match="broadcast"):
            future.wait()
        reduced(group, torch.zeros(3), OPS.SUM)  # the group goes on
        return str(error)

    messages = run(differ)
    for message in messages:
        assert "rank 1" in message
        assert "broadcast" in message
        assert "allreduce" in message
        assert message.count("test_work.py:") >= 2, message


def test_other_shapes_are_a_mismatch() -> None:
    def differ(group: ProcessGroupHorovod, rank: int) -> list[str]:
        count = 4 if rank == 2 else 3
        works: list[EngineWork] = [
            group.allreduce([torch.zeros(count)]),
            group.all_gather_single(torch.zeros(SIZE * count), torch.zeros(count)),
            group.allgather([[torch.zeros(count) for _ in range(SIZE)]], [torch.zeros(count)]),
            group.reduce_scatter_single(torch.zeros(count), torch.zeros(SIZE * count)),
            group.scatter(
                [torch.zeros(count)],
                [[torch.zeros(count) for _ in range(SIZE)]] if rank == 0 else [],
            ),
        ]
        return [type(work_error(work)).__name__ for work in works]

    assert run(differ) == [["MismatchError"] * 5] * SIZE


def work_error(work: EngineWork) -> Exception | None:
    with pytest.raises((HorovodInternalError, UsageError)):
        work.wait()
    return work.exception()


def test_other_splits_or_roots_are_errors() -> None:
    def differ(group: ProcessGroupHorovod, rank: int) -> bool:
        sent = [1, 1, 2] if rank == 0 else [1, 1, 1]
        output, source = torch.zeros(3), torch.zeros(sum(sent))
        error = work_error(group.all_to_all_single(output, source, [1, 1, 1], sent))
        assert "rank 2 expects 1 from rank 0, which gives 2" in str(error)
        assert str(error).count("test_work.py:") >= 2
        options = dist.GatherOptions()
        options.rootRank = int(rank == 1)
        outputs = [[torch.zeros(2) for _ in range(SIZE)]] if rank == options.rootRank else []
        error = work_error(group.gather(outputs, [torch.zeros(2)], options))
        assert "rank 0 expects 1 from rank 1, which gives 0" in str(error)
        lists = [torch.zeros(1 + (rank == 1 and to == 2)) for to in range(SIZE)]
        error = work_error(group.alltoall([torch.zeros(1) for _ in range(SIZE)], lists))
        assert "rank 2 expects 1 from rank 1, which gives 2" in str(error)
        return reduced(group, torch.ones(3), OPS.SUM)[0].item() == SIZE

    assert run(differ) == [True] * SIZE


def test_wait_with_a_timeout_lets_the_operation_go_on() -> None:
    late = threading.Event()

    def wait(group: ProcessGroupHorovod, rank: int) -> float:
        tensor = torch.ones(3)
        if rank == 0:
            assert late.wait(20)
        work = group.allreduce([tensor])
        if rank == 1:
            with pytest.raises(StalledError, match="goes on"):
                work.wait(timedelta(milliseconds=50))
            assert not work.is_completed()
            late.set()
        work.wait()
        return tensor[0].item()

    assert run(wait) == [3.0] * SIZE


def test_results_are_written_into_the_memory_of_the_caller() -> None:
    """What the engine allocates would have to be copied; strided outputs have to be, too."""

    def exchange(group: ProcessGroupHorovod, rank: int) -> bool:
        listed = [torch.zeros(3000) for _ in range(SIZE)]
        shares = [torch.full((3000,), float(rank)) for _ in range(SIZE)]
        whole = torch.zeros(SIZE * 3000)
        strided = torch.zeros(3000, SIZE).t()
        group._start_coalescing(torch.device("cpu"))
        works = [
            group.allgather([listed], shares[:1]),
            group.all_gather_single(whole, shares[0]),
            group.alltoall([torch.zeros(3000) for _ in range(SIZE)], shares),
            group.all_to_all_single(torch.zeros(SIZE), shares[0][:SIZE].clone(), [], []),
            group.all_gather_single(strided, shares[0]),
        ]
        group._end_coalescing(torch.device("cpu")).wait()
        assert [work.handle.results() for work in works] == [[]] * 5
        expected = [[float(source)] * 3000 for source in range(SIZE)]
        assert [tensor.tolist() for tensor in listed] == expected
        assert whole.view(SIZE, 3000).tolist() == strided.tolist() == expected
        return True

    assert run(exchange) == [True] * SIZE


def test_inputs_that_are_outputs() -> None:
    """In place, and in the place of another rank's values."""

    def gather(group: ProcessGroupHorovod, rank: int) -> list[list[float]]:
        whole = torch.zeros(SIZE, 5000)
        whole[rank] = rank
        group.all_gather_single(whole, whole[rank]).wait()
        listed = [torch.full((5000,), float(rank)) for _ in range(SIZE)]
        group.allgather([listed], [listed[(rank + 1) % SIZE]]).wait()
        mixed = torch.arange(SIZE * 5000.0).view(SIZE, 5000) + rank
        group.all_to_all_single(mixed, mixed, [], []).wait()
        return [whole[:, -1].tolist(), [t[-1].item() for t in listed], mixed[:, 0].tolist()]

    for rank, (whole, listed, mixed) in enumerate(run(gather)):
        assert whole == listed == [0.0, 1.0, 2.0]
        assert mixed == [rank * 5000.0 + source for source in range(SIZE)]


def test_empty_tensors() -> None:
    def exchange(group: ProcessGroupHorovod, rank: int) -> list[float]:
        group.all_gather_single(torch.zeros(0), torch.zeros(0)).wait()
        group.allgather([[torch.zeros(0, 3) for _ in range(SIZE)]], [torch.zeros(0, 3)]).wait()
        group.alltoall([torch.zeros(0)] * SIZE, [torch.zeros(0)] * SIZE).wait()
        counts = [2 * (rank == 0), 0, 0]
        received = torch.zeros(2 if rank == 0 else 0, 3)
        sent = torch.ones(2 if rank == 0 else 0, 3)
        group.all_to_all_single(received, sent, counts, counts).wait()
        listed = [torch.zeros(source) for source in range(SIZE)]
        group.allgather([listed], [torch.full((rank,), float(rank))]).wait()
        return [received.sum().item(), *(tensor.sum().item() for tensor in listed)]

    assert [sums[1:] for sums in run(exchange)] == [[0.0, 1.0, 4.0]] * SIZE


def test_timeout_of_an_operation_is_an_error_on_all_ranks() -> None:
    failed = threading.Event()

    def stall(group: ProcessGroupHorovod, rank: int) -> str:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        if rank == 0:
            assert failed.wait(20)
        try:
            group.allreduce([torch.ones(3)], options).wait()
        except StalledError as error:
            failed.set()
            return str(error)
        return ""

    messages = run(stall)
    for message in messages:
        assert "all_reduce 1 of world" in message
        assert "test_work.py:" in message
        assert "timeout 0.3 s" in message
        assert "Missing ranks:\nrank 0" in message
        assert "1: submitted by rank 1" in message
        assert "rank 2" in message


def test_unfinished_future_fails_with_the_timeout() -> None:
    def stall(group: ProcessGroupHorovod, rank: int) -> str:
        if rank == 0:
            group.set_timeout(timedelta(milliseconds=300))
            future = group.allreduce([torch.ones(3)]).get_future()
            with pytest.raises(RuntimeError, match="did not end within its timeout"):
                future.wait()
        return "done"

    assert run(stall) == ["done"] * SIZE


def test_abort_ends_what_waits_on_all_ranks() -> None:
    def abort(group: ProcessGroupHorovod, rank: int) -> str:
        if rank == 0:
            group.abort()
            return "aborted"
        return str(work_error(group.allreduce([torch.ones(3)])))

    first, *others = run(abort)
    assert first == "aborted"
    assert all("aborted a process group" in message for message in others)


def test_coalesced_operations_end_together() -> None:
    def coalesce(group: ProcessGroupHorovod, rank: int) -> list[float]:
        device = torch.device("cpu")
        tensors = [torch.full((3,), float(number)) for number in range(3)]
        group._start_coalescing(device)
        for tensor in tensors:
            group.allreduce([tensor])
        work = group._end_coalescing(device)
        work.wait()
        assert work.is_completed()
        values: list[torch.Tensor] = work.get_future().wait()
        return [tensor[0].item() for tensor in values]

    assert run(coalesce) == [[0.0, 3.0, 6.0]] * SIZE


def test_monitored_barrier() -> None:
    def barrier(group: ProcessGroupHorovod, rank: int) -> bool:
        group.monitored_barrier(timedelta(seconds=20))
        return True

    assert run(barrier) == [True] * SIZE


def test_callbacks_may_wait_for_later_operations() -> None:
    def nested(group: ProcessGroupHorovod, rank: int) -> float:
        def again(ended: torch.futures.Future[list[torch.Tensor]], depth: int) -> torch.Tensor:
            tensor = ended.value()[0]
            if depth == 0:
                return tensor
            future = group.allreduce([tensor]).get_future()
            return future.then(lambda inner: again(inner, depth - 1)).wait()

        first = group.allreduce([torch.ones(5000)]).get_future()
        return first.then(lambda ended: again(ended, 3)).wait()[0].item()

    assert run(nested) == [81.0] * SIZE


def test_messages_in_a_ring_and_from_any() -> None:
    def exchange(group: ProcessGroupHorovod, rank: int) -> list[float]:
        right, left = (rank + 1) % SIZE, (rank - 1) % SIZE
        received = [torch.zeros(count) for count in (1, 5000)] + [torch.zeros(4, 2).t()]
        works = [group.recv([tensor], left, tag) for tag, tensor in enumerate(received)]
        for tag, tensor in enumerate(received):
            group.send([torch.full_like(tensor, 10.0 * rank + tag)], right, tag).wait()
        for work in works:
            work.wait()
            assert work._source_rank() == left
        if rank == 0:
            anyone = [torch.zeros(3) for _ in range(SIZE - 1)]
            sources = []
            for tensor in anyone:
                work = group.recv_anysource([tensor], 7)
                assert work.get_future().wait()[0].data_ptr() == tensor.data_ptr()
                sources.append(work._source_rank())
                assert tensor.tolist() == [float(sources[-1])] * 3
            assert sorted(sources) == [1, 2]
        else:
            group.send([torch.full((3,), float(rank))], 0, 7).wait()
        return [tensor.flatten()[-1].item() for tensor in received]

    assert run(exchange) == [
        [10.0 * ((rank - 1) % SIZE) + tag for tag in range(3)] for rank in range(3)
    ]


def test_a_message_of_another_size_is_an_error_on_both() -> None:
    def exchange(group: ProcessGroupHorovod, rank: int) -> bool:
        if rank == 0:
            assert isinstance(work_error(group.send([torch.zeros(3)], 1, 0)), MismatchError)
        elif rank == 1:
            assert isinstance(work_error(group.recv([torch.zeros(4)], 0, 0)), MismatchError)
        return True

    assert run(exchange) == [True] * SIZE


def live_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("horovod ")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Threads end with their group, which another thread may drop just after the test."""
    yield
    deadline_s = time.monotonic() + 20
    while (left := live_threads()) and time.monotonic() < deadline_s:
        gc.collect()
        left[0].join(0.1)
    assert not left


def test_wrong_arguments_are_refused_at_once() -> None:
    def refuse(group: ProcessGroupHorovod, rank: int) -> bool:
        with pytest.raises(UsageError, match="cannot be divided equally"):
            group.reduce_scatter_single(torch.zeros(1), torch.zeros(4))
        with pytest.raises(UsageError, match="the outputs have the shapes"):
            group.allgather([[torch.zeros(3)]], [torch.zeros(3)])
        with pytest.raises(UsageError, match="splits"):
            group.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 1, 1], [1, 1, 2])
        with pytest.raises(UsageError, match="only integers have bits"):
            reduced(group, torch.zeros(3), OPS.BAND)
        with pytest.raises(UsageError, match="sparse"):
            reduced(group, torch.eye(3).to_sparse(), OPS.SUM)
        return True

    assert run(refuse) == [True] * SIZE
