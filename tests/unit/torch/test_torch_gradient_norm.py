"""Norms of gradients, with ranks as threads, against one process with the data of all."""

from __future__ import annotations

import math

import pytest
import torch
from thread_ranks import run_ranks
from torch_training import F64, backward, local_gradients, make_model, mean_gradients, wrap

import horovod.torch as hvd
from horovod._train.gradient_noise import NoiseAverage, estimate_noise
from horovod.errors import UsageError
from horovod.torch.gradient_norm import square_of

SIZE = 3


def norm_of(gradients: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients))


def norm(optimizer: torch.optim.Optimizer) -> float:
    return float(hvd.gradient_norm(optimizer))


def reset(model: torch.nn.Module) -> None:
    """Give the model the parameters with which it began."""
    with torch.no_grad():
        for param, old in zip(model.parameters(), make_model(0, F64).parameters(), strict=True):
            param.copy_(old)


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 2}, {"gradient_buckets": False}, {"gradient_predivide_factor": 2.0}],
)
def test_norm_is_that_of_one_process(options: dict) -> None:
    """In the first steps, when gradients travel alone, and later, in buckets."""

    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, **options)
        for step in range(4):
            optimizer.zero_grad()
            backward(model, rank, step)
            expected = norm_of(mean_gradients(SIZE, step))
            if step % 2:  # before the step, which then reduces nothing again
                assert norm(optimizer) == pytest.approx(expected, rel=1e-12)
            with torch.no_grad():
                before = [param.clone() for param in model.parameters()]
            optimizer.step()
            assert norm(optimizer) == pytest.approx(expected, rel=1e-12)
            assert norm(optimizer) == pytest.approx(expected, rel=1e-12)
            with torch.no_grad():
                for param, old in zip(model.parameters(), before, strict=True):
                    param.copy_(old)

    run_ranks(SIZE, body)


def test_sum_is_not_reduced_again() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, op=hvd.Sum)
        backward(model, rank)
        expected = SIZE * norm_of(mean_gradients(SIZE))
        assert norm(optimizer) == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        assert norm(optimizer) == pytest.approx(expected, rel=1e-12)

    run_ranks(SIZE, body)


def test_clipped_gradients_count_as_clipped() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        backward(model, rank)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert norm(optimizer) == pytest.approx(0.25, rel=1e-4)

    run_ranks(SIZE, body)


def test_local_aggregation_counts_after_the_step() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, backward_passes_per_step=2)
        backward(model, rank, 0)
        with pytest.raises(UsageError, match="between the backward passes"):
            hvd.gradient_norm(optimizer)
        backward(model, rank, 1)
        optimizer.step()
        both = zip(mean_gradients(SIZE, 0), mean_gradients(SIZE, 1), strict=True)
        assert norm(optimizer) == pytest.approx(norm_of([a + b for a, b in both]), rel=1e-12)

    run_ranks(SIZE, body)


def test_compressed_gradients_count_as_they_are_applied() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, compression=hvd.Compression.bf16)
        backward(model, rank)
        optimizer.step()
        applied = norm_of([param.grad for param in model.parameters()])
        assert norm(optimizer) == pytest.approx(applied, rel=1e-6)
        assert norm(optimizer) == pytest.approx(norm_of(mean_gradients(SIZE)), rel=0.02)

    run_ranks(SIZE, body)


def test_sparse_gradients_count_by_their_sums() -> None:
    def body(rank: int) -> None:
        embedding = torch.nn.Embedding(50, 3, sparse=True, dtype=F64)
        with torch.no_grad():
            embedding.weight.copy_(torch.arange(150, dtype=F64).reshape(50, 3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(embedding.parameters(), lr=0.1), embedding.named_parameters()
        )
        rows = torch.tensor([[1, 1, 2], [1, 7, 7], [3, 3, 3]])
        embedding(rows[rank]).sum().backward()
        optimizer.step()
        assert embedding.weight.grad is not None
        assert embedding.weight.grad.is_sparse
        counts = torch.bincount(rows.reshape(-1), minlength=50).to(F64) / SIZE
        expected = math.sqrt(3 * float(counts.square().sum()))
        assert norm(optimizer) == pytest.approx(expected, rel=1e-12)

    run_ranks(SIZE, body)


def test_no_gradients_and_other_optimizers() -> None:
    def body(_: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        assert norm(optimizer) == 0.0
        with pytest.raises(UsageError, match="SGD is no DistributedOptimizer"):
            hvd.gradient_norm(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(UsageError, match="op=Adasum"):
            hvd.gradient_norm(wrap(make_model(0, F64), op=hvd.Adasum))

    run_ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, 3_000_001])
def test_long_gradients_keep_their_digits(dtype: torch.dtype, count: int) -> None:
    """A plain sum of float32 is 1e-4 beside the norm of millions of elements."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    expected = math.sqrt(float(values.double().square().sum()))
    assert math.sqrt(float(square_of([values]))) == pytest.approx(expected, rel=1e-6)


def test_noise_of_known_gradients() -> None:
    """Gradients of mean 2 and variance 9 in each of 4 dimensions: 36 / 16 samples."""
    average = NoiseAverage(0.999)
    generator = torch.Generator().manual_seed(3)
    for _ in range(4000):
        batches = torch.randn(4, 8, 4, generator=generator, dtype=F64) * 3 + 2
        local = batches.mean(dim=1)
        square = float(local.square().sum(dim=1).mean())
        average.add(*estimate_noise(square, float(local.mean(dim=0).square().sum()), 8, 4))
    assert average.scale == pytest.approx(36 / 16, rel=0.05)


def test_noise_scale_of_an_optimizer_is_that_of_the_formula() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, backward_passes_per_step=1)
        noise = hvd.GradientNoiseScale(optimizer, batch_size=6, decay=0.0)
        with pytest.raises(UsageError, match="belongs after step"):
            noise.update()
        assert math.isnan(noise.value)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
            noise.update()
            reset(model)
            local = [norm_of(local_gradients(r, step)) ** 2 for r in range(SIZE)]
            reduced = norm_of(mean_gradients(SIZE, step)) ** 2
            square, trace = estimate_noise(sum(local) / SIZE, reduced, 6, SIZE)
            if square > 0:
                assert noise.value == pytest.approx(trace / square, rel=1e-9)

    run_ranks(SIZE, body)


def test_noise_scale_is_that_of_one_step_before_clipping() -> None:
    """Steps without update(), gradients that are dropped, and clipping change nothing."""

    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        noise = hvd.GradientNoiseScale(optimizer, batch_size=6, decay=0.0)
        backward(model, rank, 1)
        optimizer.step()  # without update()
        optimizer.zero_grad()
        reset(model)
        backward(model, rank, 2)
        optimizer.zero_grad()  # without step()
        backward(model, rank, 0)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with optimizer.skip_synchronize():
            optimizer.step()
        noise.update()
        local = sum(norm_of(local_gradients(r, 0)) ** 2 for r in range(SIZE)) / SIZE
        square, trace = estimate_noise(local, norm_of(mean_gradients(SIZE, 0)) ** 2, 6, SIZE)
        assert square > 0
        assert noise.value == pytest.approx(trace / square, rel=1e-9)

    run_ranks(SIZE, body)


def test_noise_scale_that_cannot_be_known() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        with pytest.raises(UsageError, match="op=Average"):
            hvd.GradientNoiseScale(wrap(model, op=hvd.Sum), 6)
        with pytest.raises(UsageError, match="decay=1"):
            hvd.GradientNoiseScale(wrap(model), 6, decay=1)
        with pytest.raises(UsageError, match="batch_size=0"):
            hvd.GradientNoiseScale(wrap(model), 0)
        optimizer = wrap(model, weight=2.0)
        noise = hvd.GradientNoiseScale(optimizer, 6)
        backward(model, rank)
        optimizer.step()
        with pytest.raises(UsageError, match="there is a weight"):
            noise.update()

    run_ranks(2, body)
