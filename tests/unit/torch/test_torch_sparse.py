"""Sparse tensors and sparse gradients, with ranks as threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import Sent, ThreadRanks, run_ranks
from torch_training import F64, assert_close

import horovod.torch as hvd
from horovod._train.gradient_layouts import DENSE, GradientLayout, decide_layout
from horovod.errors import MismatchError, UsageError

NONE, SPARSE, IS_DENSE = range(3)


def coo(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def sparse(seed: int, shape: tuple[int, ...], sparse_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Small integers, some indices more than once, not coalesced."""
    generator = torch.Generator().manual_seed(seed)
    count = 5 * seed
    indices = torch.stack(
        [torch.randint(0, n, (count,), generator=generator) for n in shape[:sparse_dim]]
    )
    values = torch.randint(-9, 9, (count, *shape[sparse_dim:]), generator=generator).to(dtype)
    return coo(indices, values, shape)


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("shape", "sparse_dim"), [((7, 3), 1), ((4, 3, 2), 2), ((6,), 1)])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_it_is_the_allreduce_of_the_dense_tensors(
    op: int, shape: tuple[int, ...], sparse_dim: int, dtype: torch.dtype
) -> None:
    def body(rank: int) -> None:
        # Rank 0 has no element.
        mine = sparse(rank, shape, sparse_dim, dtype)
        finish = hvd.sparse_allreduce_async(mine, "t", op)
        whole = mine.to_dense()
        expected = hvd.allreduce(whole, op=op)
        reduced = finish()
        assert reduced.is_sparse
        assert reduced.is_coalesced()
        assert reduced.dtype is dtype
        assert reduced.sparse_dim() == sparse_dim
        torch.testing.assert_close(reduced.to_dense(), expected)

    run_ranks(3, body)


def test_many_in_flight_are_finished_in_any_order() -> None:
    def body(rank: int) -> None:
        tensors = [sparse(1 + (rank + i) % 3, (9, 2), 1, F64) for i in range(35)]
        order = list(range(35))
        if rank:
            order.reverse()
        finish = {i: hvd.sparse_allreduce_async(tensors[i], f"t{i}", hvd.Average) for i in order}
        reduced = {i: finish[i]() for i in reversed(order)}
        for i in range(35):
            expected = hvd.allreduce(tensors[i].to_dense())
            torch.testing.assert_close(reduced[i].to_dense(), expected)

    run_ranks(2, body)


def test_nobody_has_an_element() -> None:
    def body(_: int) -> None:
        nothing = torch.zeros(4, 2).to_sparse(1)
        reduced = hvd.sparse_allreduce_async(nothing, "t", hvd.Average)()
        assert reduced.shape == (4, 2)
        assert reduced._nnz() == 0

    run_ranks(2, body)


def test_the_sum_of_halves_does_not_overflow() -> None:
    def body(_: int) -> None:
        big = coo(torch.tensor([[0]]), torch.full((1,), 6e4).half(), (2,))
        reduced = hvd.sparse_allreduce_async(big, "t", hvd.Average)()
        assert reduced.to_dense()[0] == torch.tensor(6e4).half()

    run_ranks(2, body)


def test_equal_indices_are_merged_before_they_are_sent() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            rows: list[int] = []
            group = ranks.groups[rank]
            allgather = group.allgather

            def spy(inputs: Any, **options: Any) -> Any:
                rows.append(inputs[0].shape[0])
                return allgather(inputs, **options)

            group.allgather = spy  # type: ignore[method-assign]
            indices = torch.tensor([[3, 3, 3, 1]])
            mine = coo(indices, torch.ones(4, 2), (5, 2))
            reduced = hvd.sparse_allreduce_async(mine, "t", hvd.Sum)()
            assert rows == [2]
            assert reduced.to_dense()[:, 0].tolist() == [0, 2, 0, 6, 0]

        ranks.run(body)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_wrong_arguments_are_refused() -> None:
    def body(_: int) -> None:
        mine = sparse(1, (4, 2), 1, F64)
        with pytest.raises(UsageError, match="op=MIN of sparse tensors"):
            hvd.sparse_allreduce_async(mine, "t", hvd.Min)
        for other in (torch.ones(2, 2), torch.eye(2).to_sparse_csr()):
            with pytest.raises(UsageError, match="COO"):
                hvd.sparse_allreduce_async(other, "t", hvd.Sum)

    run_ranks(1, body)


@pytest.mark.parametrize("what", ["shape", "op", "sparse_dim", "dtype"])
def test_disagreement_is_an_error_on_all_ranks(what: str) -> None:
    def body(rank: int) -> None:
        shape = (4 + rank * (what == "shape"), 2)
        dtype = torch.float32 if rank and what == "dtype" else F64
        mine = sparse(1, shape, 1 + rank * (what == "sparse_dim"), dtype)
        op = hvd.Sum if rank and what == "op" else hvd.Average
        with pytest.raises(MismatchError, match="rank 1"):
            hvd.sparse_allreduce_async(mine, "t", op)()

    run_ranks(2, body)


def test_how_a_gradient_travels() -> None:
    sparse_10, sparse_150 = (SPARSE, 1, 10), (SPARSE, 1, 150)
    cases = (
        (((NONE, 0, 0), (NONE, 0, 0)), None),
        (((NONE, 0, 0), sparse_10), GradientLayout(1, True)),
        ((sparse_10, (IS_DENSE, 0, 0)), DENSE),
        # Two ranks' elements are more than an allreduce of 100 bytes moves.
        ((sparse_150, sparse_150), GradientLayout(1, False)),
        ((sparse_150, sparse_10), GradientLayout(1, True)),
    )
    for reports, expected in cases:
        assert decide_layout(reports, 100, True) == expected
    assert decide_layout((sparse_10, sparse_10), 100, False) == GradientLayout(1, False)


def table(num_rows: int) -> torch.nn.Embedding:
    layer = torch.nn.Embedding(num_rows, 2, sparse=True, dtype=F64)
    torch.nn.init.ones_(layer.weight)
    return layer


def test_the_layout_is_agreed_once_and_gradients_leave_during_the_backward_pass() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            sent = Sent(ranks.groups[rank])
            layer = table(100)
            optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(layer.parameters()))
            name = "allreduce.noname.0.0"
            for step in range(3):
                optimizer.zero_grad()
                layer(torch.tensor([0, 1 + rank])).sum().backward()
                first = [f"allgather.{name}.parameters"]
                gradient = [f"sparse_allreduce.{name}", f"allreduce.{name}.used"]
                assert sent.take() == (gradient if step else first)
                optimizer.step()
                assert sent.take() == ([] if step else [f"allgather.{name}.layouts", *gradient])
                assert layer.weight.grad is not None
                assert layer.weight.grad.to_dense()[:4, 0].tolist() == [1.0, 0.5, 0.5, 0.0]

        ranks.run(body)


def test_dense_gradients_agree_without_waiting() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            sent = Sent(ranks.groups[rank])
            model = torch.nn.Linear(2, 1, dtype=F64)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(),
                gradient_buckets=False,
            )
            for step in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 2, dtype=F64)).sum().backward()
                first = [] if step else ["allgather.bias.layouts", "allgather.bias.parameters"]
                reduced = ["allreduce.bias", "allreduce.bias.used", "allreduce.weight"]
                assert sorted(sent.take()) == [*first, *reduced]
                optimizer.step()
                assert not sent.take()

        ranks.run(body)


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("num_rows", [3, 100])
def test_a_rank_without_gradient_takes_part(num_rows: int, as_dense: bool) -> None:
    def body(rank: int) -> None:
        layer = table(num_rows)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(layer.parameters()), sparse_as_dense=as_dense
        )
        for step in range(4):
            optimizer.zero_grad()
            # Nobody in the first step, then one, the other, and both.
            if step == 3 or step == 1 + rank:
                layer(torch.tensor([2, 2])).sum().backward()
            optimizer.step()
            gradient = layer.weight.grad
            if step == 0:
                assert gradient is None
            else:
                assert gradient is not None
                assert gradient.is_sparse
                assert gradient.to_dense()[:, 0].tolist()[:3] == [0, 0, 2 if step == 3 else 1]
        everyones = hvd.allgather(layer.weight.detach().reshape(1, -1))
        assert torch.equal(everyones[0], everyones[1])

    run_ranks(2, body)


def test_a_gradient_that_is_sparse_here_and_dense_there() -> None:
    def body(rank: int) -> None:
        layer = table(50)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
        for step in range(3):
            optimizer.zero_grad()
            if (rank + step) % 2:
                layer.weight[4].sum().backward()
            else:
                layer(torch.tensor([2])).sum().backward()
            optimizer.step()
        expected = torch.ones(50, 2, dtype=F64)
        expected[[2, 4]] -= 1.5
        assert torch.equal(layer.weight.detach(), expected)

    run_ranks(2, body)


def test_an_agreed_sparse_gradient_may_turn_dense() -> None:
    def body(_: int) -> None:
        layer = table(50)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
        for step in range(2):
            optimizer.zero_grad()
            (layer.weight[2] if step else layer(torch.tensor([2]))).sum().backward()
            optimizer.step()
            assert layer.weight.grad is not None
            assert layer.weight.grad.is_sparse == (step == 0)
        assert layer.weight.detach()[1:4, 0].tolist() == [1.0, -1.0, 1.0]

    run_ranks(2, body)


def test_dense_and_sparse_members_of_a_group() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = torch.nn.Sequential(table(50), torch.nn.Linear(2, 1, dtype=F64))
            torch.nn.init.ones_(model[1].weight)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), groups=1
            )
            sent = Sent(ranks.groups[rank])
            for step in range(2):
                optimizer.zero_grad()
                model(torch.tensor([3 + rank])).sum().backward()
                optimizer.synchronize()
                names = ["grouped_allreduce.1.weight", "sparse_allreduce.0.weight"]
                assert sent.take()[2 * (step == 0) : -1] == names
                assert_close([model[1].bias.grad], [torch.ones(1, dtype=F64)])
                assert model[0].weight.grad.to_dense()[:, 0].nonzero().flatten().tolist() == [3, 4]

        ranks.run(body)


def test_other_reductions_send_sparse_gradients_as_dense() -> None:
    def body(rank: int) -> None:
        layer = table(50)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=1.0), op=hvd.Max
        )
        layer(torch.tensor([3 + rank])).sum().backward()
        optimizer.synchronize()
        assert layer.weight.grad is not None
        assert layer.weight.grad.is_sparse
        assert layer.weight.grad.to_dense()[2:6, 0].tolist() == [0.0, 1.0, 1.0, 0.0]

    run_ranks(2, body)


def test_sparse_gradients_in_flight_are_dropped() -> None:
    def body(rank: int) -> None:
        layer = table(50)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
        for _ in range(3):
            # In the first turn held, then in flight.
            layer(torch.tensor([3 + rank])).sum().backward()
            optimizer.zero_grad()
        optimizer.step()
        assert bool((layer.weight == 1.0).all())

    run_ranks(2, body)
