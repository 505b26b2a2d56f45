"""check_in_sync on modules, optimizers and tensors, and the samples taken while training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import run_ranks

import horovod.torch as hvd
from horovod._train import sync_check
from horovod.errors import UsageError
from horovod.torch.sync_check import SampledSyncCheck


def model_of(seed: int) -> torch.nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
    return model


def diverged(values: Any) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]] | None:
    try:
        hvd.check_in_sync(values)
    except hvd.ReplicasDivergedError as error:
        return error.tensors, error.ranks
    return None


def test_modules_are_compared_with_their_buffers() -> None:
    def body(rank: int) -> None:
        model = model_of(1)
        assert diverged(model) is None
        assert diverged(model.state_dict()) is None
        with torch.no_grad():
            model[1].running_mean[2] = rank
            model[0].weight[1, 1] += rank == 2
        assert diverged(model.named_parameters()) == (("0.weight",), ((2,),))
        names = ("0.weight", "1.running_mean")
        assert diverged(model) == (names, ((2,), (1, 2)))
        assert diverged({"model": model.state_dict(), "epoch": rank}) == (
            ("model.0.weight", "model.1.running_mean"),
            ((2,), (1, 2)),
        )

    run_ranks(3, body)


def test_the_state_of_optimizers_is_compared() -> None:
    def body(rank: int) -> None:
        model = model_of(1)
        optimizer = torch.optim.Adam(model.parameters())
        assert diverged(optimizer) is None
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        model[0].bias.grad[3] += rank
        optimizer.step()
        names = ("state.1.exp_avg", "state.1.exp_avg_sq")
        assert diverged(optimizer) == (names, ((1,), (1,)))
        assert diverged(optimizer.state_dict()) == (names, ((1,), (1,)))
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        assert diverged(wrapped) == (
            ("state.0.bias.exp_avg", "state.0.bias.exp_avg_sq"),
            ((1,), (1,)),
        )

    run_ranks(2, body)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([float("nan"), -0.0]),
        lambda: torch.arange(12).reshape(3, 4).t(),
        lambda: torch.ones(2, 3, dtype=torch.bfloat16),
        lambda: torch.tensor([1 + 2j]).conj(),
        lambda: torch.zeros(0, 3),
        lambda: torch.tensor(True),
        lambda: torch.eye(3).to_sparse(),
    ],
)
def test_tensors_of_all_kinds(make: Any) -> None:
    run_ranks(2, lambda rank: hvd.check_in_sync([("x", make())]))


def test_bits_dtype_and_shape_count() -> None:
    def body(rank: int) -> list[Any]:
        return [
            diverged([("x", torch.tensor([0.0 if rank else -0.0]))]),
            diverged([("x", torch.zeros(2, dtype=torch.int32 if rank else torch.float32))]),
            diverged([("x", torch.zeros((2, 3) if rank else (3, 2)))]),
            diverged([("x", torch.zeros(3).t() if rank else torch.zeros(3))]),
            diverged({"a": torch.zeros(1)} if rank else {}),
        ]

    found = (("x",), ((1,),))
    assert run_ranks(2, body) == [[found, found, found, None, (("a",), ((1,),))]] * 2


@pytest.mark.parametrize("values", [3, "model", torch.ones(3), [torch.ones(3)], [("a", 1)]])
def test_other_values_are_refused(values: Any) -> None:
    def body(rank: int) -> None:
        with pytest.raises(UsageError, match="check_in_sync"):
            hvd.check_in_sync(values)
        with pytest.raises(UsageError, match="meta"):
            hvd.check_in_sync([("x", torch.ones(3, device="meta"))])

    run_ranks(1, body)


def parameters(rank: int) -> dict[torch.Tensor, str]:
    return {torch.nn.Parameter(torch.zeros(size)): f"w{size}" for size in (10, 1, 25)}


def groups_of(params: dict[torch.Tensor, str]) -> list[dict[str, Any]]:
    return [{"params": [param]} for param in params]


def test_samples_cover_everything_and_begin_anew() -> None:
    params = parameters(0)
    sampled = SampledSyncCheck(hvd.global_process_set, params, 1, sample_bytes=48)

    def sizes(index: int) -> dict[str, int]:
        return {array.name: array.num_bytes for array in sampled._sample(params, index)}

    assert sizes(0) == {"w10": 40, "w1": 4, "w25": 4}
    assert sizes(1) == {"w25": 48}
    assert sizes(2) == {"w25": 48}
    assert sizes(3) == sizes(0)
    assert not list(sampled._sample({}, 0))


def test_a_divergence_is_found_by_the_sample_that_holds_it() -> None:
    def body(rank: int) -> None:
        params = parameters(rank)
        sampled = SampledSyncCheck(hvd.global_process_set, params, 2, sample_bytes=48)
        with torch.no_grad():
            list(params)[2][20] = rank
        # The third sample holds it; it is sent after step 6 and judged after step 8.
        for _ in range(7):
            sampled.after_step(groups_of(params))
        with pytest.raises(hvd.ReplicasDivergedError) as caught:
            sampled.after_step(groups_of(params))
        assert (caught.value.tensors, caught.value.ranks) == (("w25",), ((1,),))

    run_ranks(2, body)


def test_equal_replicas_train_on_and_nothing_is_sent_without_a_setting() -> None:
    def body(rank: int) -> None:
        params = parameters(0)
        for num_steps in (0, 1, 3):
            sampled = SampledSyncCheck(hvd.global_process_set, params, num_steps, 48)
            for _ in range(20):
                sampled.after_step(groups_of(params))
            assert (sampled._pending is None) == (num_steps == 0)

    run_ranks(2, body)


def test_counting_begins_anew_in_a_new_job() -> None:
    sampled = [SampledSyncCheck(hvd.global_process_set, {}, 2) for _ in range(2)]

    def body(rank: int, expected: bool) -> None:
        # An odd number of steps: a newcomer would be out of step otherwise.
        for _ in range(3):
            sampled[rank].after_step([])
        assert isinstance(sampled[rank]._pending, sync_check.PendingCheck) == expected

    for _ in range(2):
        run_ranks(2, body, True)


def test_optimizers_check_as_often_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SampledSyncCheck,
        "configured",
        staticmethod(lambda process_set, names: SampledSyncCheck(process_set, names, 1)),
    )

    def body(rank: int) -> None:
        model = model_of(1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 3), step + 0.5)).square().sum().backward()
            optimizer.step()
        with torch.no_grad():
            model[0].weight[0, 0] += rank
        optimizer.step()
        with pytest.raises(hvd.ReplicasDivergedError, match=r"'0\.weight' on rank 1"):
            optimizer.step()

    run_ranks(2, body)
