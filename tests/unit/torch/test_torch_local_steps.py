"""LocalSGD and DiLoCo beside the same algorithm computed in one process."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import horovod.torch as hvd
from horovod._rank.job_context import current
from horovod.errors import UsageError
from horovod.testing import run_ranks
from horovod.torch.sync_check import SampledSyncCheck

if TYPE_CHECKING:
    from collections.abc import Callable

Params = list[torch.Tensor]


def model_of(seed: int = 1) -> torch.nn.Sequential:
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers).double()
    generator = torch.Generator().manual_seed(seed)  # the global one is shared by ranks in threads
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=param.dtype))
    return model


def gradients_of(model: torch.nn.Module, rank: int, step: int) -> None:
    """Compute the gradients of a batch that only this rank and step have."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    batch = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    model.zero_grad()
    model(batch).square().sum().backward()


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def bits_of(tensors: Any) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


class Reference:
    """All ranks in one process: what the papers say, with an exchange of everything at once.

    Args:
        ranks: how many.
        outer: steps the shared parameters; None averages the parameters.
    """

    def __init__(self, ranks: int, outer: Callable[[Params], Any] | None = None) -> None:
        self.models = [model_of() for _ in range(ranks)]
        self.optimizers = [sgd(model) for model in self.models]
        self.outer = [p.detach().clone() for p in self.models[0].parameters()]
        self.outer_optimizer = outer(self.outer) if outer else None

    def step(self, step: int) -> None:
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            gradients_of(model, rank, step)
            optimizer.step()

    def mean_changes(self, indices: list[int]) -> dict[int, torch.Tensor]:
        locals_ = [list(model.parameters()) for model in self.models]
        return {
            i: torch.stack([params[i].detach() - self.outer[i] for params in locals_]).mean(0)
            for i in indices
        }

    def apply(self, changes: dict[int, torch.Tensor], mixing: float = 0.0) -> None:
        for index, change in changes.items():
            if self.outer_optimizer is None:
                self.outer[index] += change
            else:
                self.outer[index].grad = -change
        if self.outer_optimizer is not None:
            self.outer_optimizer.step()
            for param in self.outer:
                param.grad = None
        for model in self.models:
            for index, param in enumerate(model.parameters()):
                if index in changes:
                    mixed = mixing * param.detach() + (1 - mixing) * self.outer[index]
                    param.data.copy_(mixed)


def trained(model: torch.nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        gradients_of(model, hvd.rank(), step)
        optimizer.step()


def nesterov(params: Params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("outer", [None, nesterov])
def test_whole_models_are_exchanged_as_in_the_papers(
    ranks: int, outer: Callable[[Params], Any] | None
) -> None:
    def body() -> list[torch.Tensor]:
        hvd.init()
        model = model_of()
        wrap: Any = hvd.DiLoCo if outer else hvd.LocalSGD
        optimizer = wrap(sgd(model), model.named_parameters(), every=4)
        assert isinstance(optimizer, torch.optim.SGD)
        trained(model, optimizer, range(10))
        return [p.detach().clone() for p in model.parameters()]

    reference = Reference(ranks, outer)
    for step in range(10):
        reference.step(step)
        if step in (3, 7):
            reference.apply(reference.mean_changes([0, 1, 2, 3]))
    for rank, params in enumerate(run_ranks(ranks, body)):
        for got, wanted in zip(params, reference.models[rank].parameters(), strict=True):
            torch.testing.assert_close(got, wanted.detach(), rtol=0, atol=1e-12)


def test_fragments_travel_in_turn_while_training_goes_on() -> None:
    def body() -> list[torch.Tensor]:
        hvd.init()
        model = model_of()
        optimizer = hvd.DiLoCo(sgd(model), every=4, fragments=2, delay=1, mixing=0.25)
        trained(model, optimizer, range(11))
        return [p.detach().clone() for p in model.parameters()]

    reference = Reference(2, nesterov)
    in_flight: dict[int, Any] = {}
    for step in range(1, 12):
        reference.step(step - 1)
        if step in in_flight:
            reference.apply(in_flight.pop(step), 0.25)
        if step % 2 == 0:  # the weight of the first layer is about half of all
            part = [0] if step % 4 == 2 else [1, 2, 3]
            in_flight[step + 1] = reference.mean_changes(part)
    for rank, params in enumerate(run_ranks(2, body)):
        for got, wanted in zip(params, reference.models[rank].parameters(), strict=True):
            torch.testing.assert_close(got, wanted.detach(), rtol=0, atol=1e-12)


def test_an_average_after_each_step_is_that_of_gradients() -> None:
    def body() -> list[torch.Tensor]:
        hvd.init()
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.05)
        trained(model, hvd.LocalSGD(plain, every=1), range(5))
        other = model_of()
        plain = torch.optim.SGD(other.parameters(), lr=0.05)
        trained(other, hvd.DistributedOptimizer(plain, other.named_parameters()), range(5))
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        return [a.detach() - b.detach() for a, b in pairs]

    for differences in run_ranks(2, body):
        assert max(difference.abs().max() for difference in differences) < 1e-12


def test_synchronize_makes_all_ranks_equal() -> None:
    def body() -> list[list[bytes]]:
        hvd.init()
        model = model_of()
        optimizer = hvd.DiLoCo(sgd(model), every=4, fragments=3, delay=2)
        trained(model, optimizer, range(6))
        before = bits_of(model.parameters())
        optimizer.synchronize()
        hvd.check_in_sync(model)
        after = bits_of(model.parameters())
        optimizer.synchronize()
        assert bits_of(model.parameters()) == after == bits_of(optimizer.outer_parameters())
        return before

    first, second = run_ranks(2, body)
    assert first != second


@pytest.mark.parametrize("wrap", ["LocalSGD", "DiLoCo", "delayed"])
def test_a_loaded_state_goes_on_bit_by_bit(wrap: str) -> None:
    def wrapped(model: torch.nn.Module) -> Any:
        if wrap == "LocalSGD":
            return hvd.LocalSGD(sgd(model), every=3)
        if wrap == "DiLoCo":
            return hvd.DiLoCo(sgd(model), every=3)
        return hvd.DiLoCo(sgd(model), every=4, fragments=2, delay=3)

    def body() -> None:
        hvd.init()
        model = model_of()
        optimizer = wrapped(model)
        trained(model, optimizer, range(5))
        saved = pickle.dumps((model.state_dict(), optimizer.state_dict()))
        trained(model, optimizer, range(5, 12))
        again = model_of(2)
        resumed = wrapped(again)
        weights, state = pickle.loads(saved)
        again.load_state_dict(weights)
        resumed.load_state_dict(state)
        trained(again, resumed, range(5, 12))
        assert bits_of(again.parameters()) == bits_of(model.parameters())
        resumed.synchronize()  # no rank leaves while another one still trains

    run_ranks(2, body)


def test_a_loaded_state_waits_for_exchanges_in_flight() -> None:
    """Their names are used again by the next exchanges."""
    loads, has_loaded = threading.Event(), threading.Event()

    def body() -> bytes:
        hvd.init()
        model = model_of()
        optimizer: Any = hvd.DiLoCo(sgd(model), every=2, delay=1)
        weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        trained(model, optimizer, range(1))
        if hvd.rank() == 1:  # the last one to start the exchange
            assert loads.wait(20)
            has_loaded.wait(0.3)
        trained(model, optimizer, range(1, 2))
        handles = [
            handle
            for exchange in optimizer._outer_steps._pending.values()
            for handle in exchange._handles
        ]
        assert handles
        loads.set()
        optimizer.load_state_dict(state)
        assert all(handle.done() for handle in handles)
        has_loaded.set()
        model.load_state_dict(weights)
        trained(model, optimizer, range(6))
        optimizer.synchronize()
        return b"".join(bits_of(model.parameters()))

    first, second = run_ranks(2, body)
    assert first == second


def test_the_state_of_a_plain_optimizer_is_enough() -> None:
    def body() -> None:
        hvd.init()
        model = model_of()
        plain = sgd(model)
        optimizer = hvd.LocalSGD(plain, every=2)
        optimizer.load_state_dict(plain.state_dict())
        model.load_state_dict(model_of(3).state_dict())  # afterward, as scripts do
        trained(model, optimizer, range(2))
        hvd.check_in_sync(model)

    run_ranks(2, body)


def test_ranks_must_begin_with_the_same_parameters() -> None:
    def body() -> str:
        hvd.init()
        model = model_of(hvd.rank())
        optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=2)
        gradients_of(model, hvd.rank(), 0)
        with pytest.raises(hvd.ReplicasDivergedError) as caught:
            optimizer.step()
        assert caught.value.tensors[0] == "0.weight"
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        trained(model, optimizer, range(2))
        hvd.check_in_sync(model)
        return str(caught.value)

    for text in run_ranks(2, body):
        assert "Start all ranks from the same state" in text
        assert "before the first local step" in text


def test_a_rank_that_has_joined_changes_nothing() -> None:
    def body() -> list[torch.Tensor]:
        hvd.init()
        model = model_of()
        optimizer = hvd.LocalSGD(sgd(model), every=2)
        trained(model, optimizer, range(2 if hvd.rank() == 1 else 4))
        hvd.join()
        return [p.detach().clone() for p in model.parameters()]

    reference = Reference(2)
    for step in range(2):
        reference.step(step)
    reference.apply(reference.mean_changes([0, 1, 2, 3]))
    kept = [p.detach().clone() for p in reference.models[1].parameters()]
    for step in range(2, 4):
        reference.step(step)
    for mine, other in zip(reference.models[1].parameters(), kept, strict=True):
        mine.data.copy_(other)
    reference.apply(reference.mean_changes([0, 1, 2, 3]))
    for got, wanted in zip(run_ranks(2, body)[0], reference.outer, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_newcomers_get_the_outer_state() -> None:
    def body() -> None:
        hvd.init()
        model = model_of()
        optimizer = hvd.DiLoCo(sgd(model), every=3)
        if hvd.rank() == 0:  # as the ranks that have trained before others come
            optimizer._outer_steps._has_begun = True
            optimizer._outer_steps.num_steps = 5
            for param in optimizer._outer_steps.outer:
                param.mul_(2)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
        state.sync()
        assert optimizer._outer_steps.num_steps == 5
        trained(model, optimizer, range(1))  # the sixth: an exchange
        hvd.check_in_sync(model)
        hvd.check_in_sync(list(zip("abcd", optimizer.outer_parameters(), strict=True)))
        momentum = optimizer.outer_optimizer.state_dict()
        hvd.check_in_sync(momentum)

    run_ranks(2, body)


def test_a_step_without_finite_gradients_counts_on_all_ranks() -> None:
    def body() -> int:
        hvd.init()
        model = model_of().float()
        optimizer = hvd.LocalSGD(sgd(model), every=4)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            loss = model(torch.randn(5, 3)).square().sum()
            if hvd.rank() == 1 and step == 2:
                loss = loss * float("inf")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        hvd.check_in_sync(model)
        assert all(bool(p.isfinite().all()) for p in model.parameters())
        assert current().steps.number == 4  # for those who watch the job
        return optimizer._outer_steps.num_steps

    assert run_ranks(2, body) == [4, 4]


def test_scaled_gradients_are_divided_once() -> None:
    def body() -> None:
        hvd.init()
        models = [model_of().float() for _ in range(2)]
        plain, wrapped = sgd(models[0]), hvd.LocalSGD(sgd(models[1]), every=2)
        for model, optimizer in zip(models, (plain, wrapped), strict=True):
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            scaler.scale(model(torch.ones(5, 3)).square().sum()).backward()
            if hvd.rank() == 1:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        assert bits_of(models[0].parameters()) == bits_of(models[1].parameters())
        wrapped.synchronize()

    run_ranks(2, body)


def test_parameters_of_half_precision_have_outer_ones_of_float32() -> None:
    def body() -> None:
        hvd.init()
        model = model_of().to(torch.bfloat16)
        optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=2)
        for _ in range(4):
            batch = torch.full((5, 3), hvd.rank() + 1.0, dtype=torch.bfloat16)
            model.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
        hvd.check_in_sync(model)
        assert {outer.dtype for outer in optimizer.outer_parameters()} == {torch.float32}

    run_ranks(2, body)


def test_changes_may_travel_in_half_precision() -> None:
    sent: list[torch.dtype] = []

    class Noted(hvd.Compression.fp16):  # type: ignore[misc, name-defined]
        @classmethod
        def compress(cls, tensor: torch.Tensor) -> Any:
            wire, context = super().compress(tensor)
            sent.append(wire.dtype)
            return wire, context

    def body() -> list[torch.Tensor]:
        hvd.init()
        model = model_of()
        trained(model, hvd.LocalSGD(sgd(model), every=2, compression=Noted), range(2))
        hvd.check_in_sync(model)
        return [p.detach().clone() for p in model.parameters()]

    reference = Reference(2)
    for step in range(2):
        reference.step(step)
    reference.apply(reference.mean_changes([0, 1, 2, 3]))
    for got, wanted in zip(run_ranks(2, body)[0], reference.outer, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=2e-3)
        assert not torch.equal(got, wanted)
    assert sent == [torch.float16] * 8


def test_samples_compare_the_outer_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SampledSyncCheck,
        "configured",
        staticmethod(lambda process_set, names: SampledSyncCheck(process_set, names, 1)),
    )

    def body() -> None:
        hvd.init()
        model = model_of()
        optimizer = hvd.DiLoCo(sgd(model), every=2)
        trained(model, optimizer, range(5))  # local steps differ, which is no fault
        optimizer._outer_steps.outer[1].add_(hvd.rank())
        with pytest.raises(hvd.ReplicasDivergedError) as caught:
            trained(model, optimizer, range(5, 9))
        assert caught.value.tensors == ("allreduce.noname.0.1",)

    run_ranks(2, body)


def test_hosts_may_train_alone_with_the_ranks_of_each_together() -> None:
    def body() -> None:
        hvd.init()
        sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
        model = model_of()
        inner = hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), process_set=sets[hvd.rank() // 2]
        )
        optimizer = hvd.LocalSGD(inner, model.named_parameters(), every=3)
        trained(model, optimizer, range(2))
        own = sets[hvd.rank() // 2]
        hvd.check_in_sync(model, own)
        with pytest.raises(hvd.ReplicasDivergedError):
            hvd.check_in_sync(model)
        trained(model, optimizer, range(2, 3))
        hvd.check_in_sync(model)
        assert current().steps.number == 3
        assert type(copy.deepcopy(optimizer)) is torch.optim.SGD

    with pytest.warns(UserWarning, match=r"wrap it again with hvd\.LocalSGD"):
        run_ranks(4, body)


def test_a_joined_rank_goes_on_with_the_state_of_the_last_one() -> None:
    def body() -> int:
        hvd.init()
        model = model_of()
        optimizer = hvd.DiLoCo(sgd(model), every=2)
        trained(model, optimizer, range(3 if hvd.rank() == 0 else 5))
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        hvd.check_in_sync(model)
        trained(model, optimizer, range(5, 8))
        optimizer.synchronize()
        hvd.check_in_sync(model)
        return last

    assert run_ranks(2, body) == [1, 1]


def test_parameters_that_are_trained_later_are_refused() -> None:
    def body() -> None:
        hvd.init()
        model = model_of()
        model[0].requires_grad_(False)
        optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=2)
        trained(model, optimizer, range(2))
        model[0].requires_grad_(True)
        before = bits_of(model.parameters())
        with pytest.raises(UsageError, match=r"parameter 0\.weight is trained now"):
            trained(model, optimizer, range(2, 3))
        assert bits_of(model.parameters()) == before

    run_ranks(2, body)


def test_states_that_do_not_fit_are_refused() -> None:
    def body() -> None:
        hvd.init()
        model = model_of()
        local = hvd.LocalSGD(sgd(model), every=4)
        diloco = hvd.DiLoCo(sgd(model), every=4, fragments=2, delay=1)
        for to, state in ((local, diloco.state_dict()), (diloco, local.state_dict())):
            with pytest.raises(UsageError, match="the state is of a "):
                to.load_state_dict(state)
        trained(model, diloco, range(2))
        with pytest.raises(UsageError, match="exchanges in flight of OuterSchedule"):
            hvd.DiLoCo(sgd(model), every=4).load_state_dict(diloco.state_dict())
        other = hvd.LocalSGD(sgd(torch.nn.Sequential(torch.nn.Linear(2, 2))), every=4)
        with pytest.raises(UsageError, match=r"shapes \[\(2, 2\), \(2,\)\], but"):
            local.load_state_dict(other.state_dict())
        diloco.synchronize()

    run_ranks(2, body)


def test_the_end_tells_of_steps_that_were_not_averaged(caplog: pytest.LogCaptureFixture) -> None:
    def body(synchronizes: bool) -> None:
        hvd.init()
        model = model_of()
        optimizer = hvd.LocalSGD(sgd(model), every=4)
        trained(model, optimizer, range(6))
        if synchronizes:
            optimizer.synchronize()

    with caplog.at_level(logging.WARNING, "horovod"):
        run_ranks(2, body, True)
        gc.collect()
        assert "not averaged" not in caplog.text
        run_ranks(2, body, False)
        gc.collect()
    assert "the last 2 steps of the optimizer made at " in caplog.text
    assert __file__ in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": 0}, "every=0"),
        ({"every": 4, "mixing": 0.5}, "needs a delay"),
        ({"every": 4, "delay": 1, "mixing": 1.0}, "below 1"),
        ({"every": 8, "fragments": 8}, "trains 4 parameters"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    def body() -> None:
        hvd.init()
        with pytest.raises(UsageError, match=words):
            hvd.DiLoCo(sgd(model_of()), **arguments)

    run_ranks(1, body)


def test_wrapping_twice_and_later_parameters_are_refused() -> None:
    def body() -> None:
        hvd.init()
        optimizer = hvd.LocalSGD(sgd(model_of()), every=2)
        with pytest.raises(UsageError, match="already"):
            hvd.DiLoCo(optimizer, every=2)
        with pytest.raises(UsageError, match="trains alone"):
            hvd.DistributedOptimizer(optimizer)
        with pytest.raises(UsageError, match="plain optimizer"):
            optimizer.add_param_group({"params": [torch.zeros(1)]})

    run_ranks(1, body)
