"""Complex numbers, with ranks as threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import run_ranks

import horovod.torch as hvd
from horovod.errors import UsageError

DTYPES = (torch.complex64, torch.complex128)
SIZE = 3


def values(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (40, 50)])
def test_every_form_of_sums_and_averages(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    every = [values(rank, dtype, *shape) for rank in range(SIZE)]

    def body(rank: int) -> None:
        mine = every[rank]
        for op, expected in (
            (hvd.Sum, torch.stack(every).sum(0)),
            (hvd.Average, torch.stack(every).mean(0)),
        ):
            in_place = [mine.clone() for _ in range(4)]
            results = [
                hvd.allreduce(mine, op=op),
                hvd.allreduce(mine, op=op, compression=hvd.Compression.fp16),
                hvd.allreduce_(in_place[0], op=op),
                hvd.synchronize(hvd.allreduce_async(mine, op=op)),
                hvd.synchronize(hvd.allreduce_async_(in_place[1], op=op)),
                *hvd.grouped_allreduce([mine, mine], op=op),
                *hvd.grouped_allreduce_([in_place[2]], op=op),
                *hvd.synchronize(hvd.grouped_allreduce_async([mine, mine], op=op)),
                *hvd.synchronize(hvd.grouped_allreduce_async_([in_place[3]], op=op)),
                hvd.allreduce(mine, op=op, prescale_factor=2.0, postscale_factor=0.5),
                *in_place,
            ]
            for result in results:
                torch.testing.assert_close(result, expected)
        weighted = hvd.allreduce(mine, weight=float(rank))
        torch.testing.assert_close(weighted, (every[1] + 2 * every[2]) / 3)

    run_ranks(SIZE, body)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_that_move_rows(dtype: torch.dtype) -> None:
    every = [values(rank, dtype, 2 * SIZE, 2) for rank in range(SIZE)]

    def body(rank: int) -> None:
        mine, rows = every[rank], slice(2 * rank, 2 * rank + 2)
        assert torch.equal(
            hvd.allgather(mine[: rank + 1]),
            torch.cat([tensor[: other + 1] for other, tensor in enumerate(every)]),
        )
        gathered = hvd.grouped_allgather([mine, torch.ones(1), mine[:0]])
        assert [each.dtype for each in gathered] == [dtype, torch.float32, dtype]
        assert torch.equal(gathered[0], torch.cat(every))
        assert torch.equal(hvd.synchronize(hvd.allgather_async(mine)), torch.cat(every))
        assert torch.equal(hvd.broadcast(mine, 1), every[1])
        assert torch.equal(hvd.broadcast_(mine.clone(), 2), every[2])
        sent = torch.cat([tensor[rows] for tensor in every])
        assert torch.equal(hvd.alltoall(mine), sent)
        received, splits = hvd.synchronize(hvd.alltoall_async(mine, [2] * SIZE))
        assert torch.equal(received, sent)
        assert splits.tolist() == [2] * SIZE
        total = torch.stack(every).sum(0)[rows]
        torch.testing.assert_close(hvd.reducescatter(mine, op=hvd.Sum), total)
        torch.testing.assert_close(
            hvd.synchronize(hvd.reducescatter_async(mine[:, 0].contiguous(), op=hvd.Sum)),
            total[:, 0],
        )

    run_ranks(SIZE, body)


def test_other_reductions_are_refused_with_advice_that_can_be_followed() -> None:
    def body(rank: int) -> None:
        mine = values(rank, torch.complex64, 4).conj()
        plain = mine.resolve_conj()
        for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            for call, given in (
                (hvd.allreduce, plain),
                (hvd.allreduce_, plain),
                (hvd.grouped_allreduce, [plain, plain]),
                (hvd.allreduce_async, plain),
            ):
                with pytest.raises(UsageError, match=r"view_as_real\(tensor\.resolve_conj\(\)\)"):
                    call(given, op=op)
            parts = hvd.allreduce(torch.view_as_real(mine.resolve_conj()), op=op)
            assert torch.view_as_complex(parts).shape == (4,)
            param = torch.nn.Parameter(plain)
            with pytest.raises(UsageError, match=op.name):
                hvd.DistributedOptimizer(torch.optim.SGD([param], 0.1), [("p", param)], op=op)
            plain_sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
            optimizer = hvd.DistributedOptimizer(plain_sgd, op=op)
            with pytest.raises(UsageError, match=op.name):
                optimizer.add_param_group({"params": [param]})
            assert len(optimizer.param_groups) == len(plain_sgd.param_groups) == 1
        with pytest.raises(UsageError, match="resolve_conj"):
            hvd.allreduce(mine)
        for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(UsageError, match="reshape"):
                call(torch.tensor(1j))

    run_ranks(2, body)


def test_pairs_of_floats_are_no_complex_numbers() -> None:
    def body(rank: int) -> None:
        mine = values(rank, torch.complex64, 4)
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            hvd.allreduce(torch.view_as_real(mine) if rank else mine, name="x")

    run_ranks(2, body)


def test_derivatives() -> None:
    def body(rank: int) -> None:
        def leaf() -> torch.Tensor:
            return values(rank, torch.complex128, 4, 2).requires_grad_()

        for function, real in (
            (lambda x: hvd.allreduce(x, name="a"), lambda x: hvd.allreduce(x, name="b")),
            (lambda x: hvd.allgather(x, name="c"), lambda x: hvd.allgather(x, name="d")),
            (lambda x: hvd.broadcast(x, 0, name="e"), lambda x: hvd.broadcast(x, 0, name="f")),
            (lambda x: hvd.alltoall(x, name="g"), lambda x: hvd.alltoall(x, name="h")),
            (lambda x: hvd.reducescatter(x, "i"), lambda x: hvd.reducescatter(x, "j")),
        ):
            x, y = leaf(), leaf()
            (function(x).abs() ** 2 * (rank + 1)).sum().backward()
            pairs = real(torch.view_as_real(y))
            (pairs.square().sum(-1) * (rank + 1)).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)

    run_ranks(2, body)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature:UserWarning")
@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"weight": 2.0, "gradient_buckets": False}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_optimizer_trains_as_one_process(dtype: torch.dtype, options: dict[str, Any]) -> None:
    def loss(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        return (model(values(100 * step + rank, dtype, 5, 3)).abs() ** 2).mean()

    def new_model() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(dtype)
        with torch.no_grad():
            for index, param in enumerate(model.parameters()):
                param.copy_(values(index, dtype, *param.shape))
        return model

    def body(rank: int) -> list[torch.Tensor]:
        model = new_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(5):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        hvd.check_in_sync(model)
        return [param.detach() for param in model.parameters()]

    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        torch.stack([loss(model, rank, step) for rank in range(2)]).mean().backward()
        optimizer.step()
    for mine in run_ranks(2, body):
        torch.testing.assert_close(mine, [param.detach() for param in model.parameters()])


def test_sparse_tensors() -> None:
    def body(rank: int) -> None:
        mine = torch.sparse_coo_tensor(
            torch.tensor([[0, 1 + rank]]), torch.tensor([2j, 4.0]), (4,), check_invariants=True
        )
        for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 0.5)):
            handle = hvd.sparse_allreduce_async(mine, f"x{op}", op)
            result = hvd.synchronize(handle)
            assert hvd.poll(handle)
            expected = torch.tensor([4j, 4.0, 4.0, 0.0]) * factor
            assert torch.equal(result.to_dense(), expected)
            assert torch.equal(handle().to_dense(), expected)

    run_ranks(2, body)
