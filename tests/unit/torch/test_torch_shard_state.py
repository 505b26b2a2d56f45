"""DistributedOptimizer(shard_state=True) beside the same without it, with ranks as threads."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import horovod.torch as hvd
from horovod.errors import MismatchError, UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

F64 = torch.float64
STEPS = 4


class Net(torch.nn.Module):
    """Layers of random sizes; some have no gradient in some steps, on some ranks or on all."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        width = draw.randint(1, 9)
        self.first = torch.nn.Conv2d(2, width, 3)
        if draw.random() < 0.5:
            self.first = self.first.to(memory_format=torch.channels_last)
        self.sometimes = torch.nn.Linear(width, width)
        self.frozen = torch.nn.Linear(width, width).requires_grad_(False)
        self.last = torch.nn.Linear(width, draw.randint(1, 40))
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.nobody = torch.nn.Parameter(torch.ones(3))
        self.double()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.randn(param.shape, generator=generator, dtype=F64) * 0.5)

    def forward(self, x: torch.Tensor, uses: bool) -> torch.Tensor:
        x = self.frozen(self.first(x).mean((2, 3)))
        if uses:
            x = x + self.sometimes(x)
        return self.last(x.tanh()) * self.scale


def batch_of(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(3, 2, 5, 5, generator=generator, dtype=F64)


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        make: makes the plain optimizer of two groups of parameters.
        seed: of the model.
        passes: backward passes per step.
        wrapping: options of DistributedOptimizer.
        clip: the greatest norm of the gradients, or None.
        closure: whether the step gets the loss as a function.
    """

    make: Callable[[Any], torch.optim.Optimizer]
    seed: int = 1
    passes: int = 1
    wrapping: dict[str, Any] = field(default_factory=dict)
    clip: float | None = None
    closure: bool = False


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


def groups_of(model: Net) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [param for _, param in named[::2]]},
        {"params": [param for _, param in named[1::2]], "lr": 0.03},
    ]


def train(recipe: Recipe, shard_state: bool, steps: int = STEPS) -> tuple[list[Any], Any]:
    """Return the parameters and the state of the optimizer."""
    hvd.init()
    model = Net(recipe.seed)
    optimizer = hvd.DistributedOptimizer(
        recipe.make(groups_of(model)),
        model.named_parameters(),
        backward_passes_per_step=recipe.passes,
        shard_state=shard_state,
        **recipe.wrapping,
    )
    scheduler = StepLR(optimizer, 2)
    for step in range(steps):

        def loss(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            for number in range(recipe.passes):
                uses = (step + hvd.rank()) % 3 == 0
                value = model(batch_of(hvd.rank(), 10 * step + number), uses).square().sum()
                value.backward()
            return value

        if recipe.closure:
            assert optimizer.step(loss).dim() == 0
        else:
            loss()
            if recipe.clip is not None:
                hvd.clip_grad_norm_(optimizer, recipe.clip)
            optimizer.step()
        scheduler.step()
    return [param.detach().clone() for param in model.parameters()], optimizer.state_dict()


def compare(recipe: Recipe, num_ranks: int) -> None:
    """Both ways to train end with the same parameters and state, on all ranks."""
    (wanted, wanted_state), *_ = run_ranks(num_ranks, train, recipe, False)
    for params, state in run_ranks(num_ranks, train, recipe, True):
        for param, want in zip(params, wanted, strict=True):
            torch.testing.assert_close(param, want, rtol=1e-9, atol=1e-12)
        assert_same_state(state, wanted_state)


def assert_same_state(state: Any, wanted: Any) -> None:
    assert state["param_groups"] == wanted["param_groups"]
    assert state["state"].keys() == wanted["state"].keys()
    for index, values in wanted["state"].items():
        assert state["state"][index].keys() == values.keys()
        for key, want in values.items():
            torch.testing.assert_close(state["state"][index][key], want, rtol=1e-9, atol=1e-12)
            if isinstance(want, torch.Tensor):
                assert state["state"][index][key].stride() == want.stride()


def random_recipe(seed: int) -> tuple[Recipe, int]:
    draw = random.Random(seed)
    classes: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
        (torch.optim.SGD, {"momentum": draw.choice([0, 0.9]), "weight_decay": 0.1}),
        (torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "maximize": True}),
        (torch.optim.Adam, {"amsgrad": draw.random() < 0.5, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"foreach": draw.random() < 0.5}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adamax, {}),
        (torch.optim.NAdam, {"weight_decay": 0.01}),
        (torch.optim.RAdam, {}),
        (torch.optim.RMSprop, {"centered": draw.random() < 0.5, "momentum": 0.5}),
        (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.ASGD, {"t0": 2}),
    ]
    kind, options = classes[seed % len(classes)]
    wrapping: dict[str, Any] = {"op": draw.choice([hvd.Average, hvd.Sum])}
    if wrapping["op"] == hvd.Average and draw.random() < 0.3:
        wrapping["gradient_predivide_factor"] = 2.0
    recipe = Recipe(
        lambda params: kind(params, lr=0.01, **options),
        seed,
        draw.choice([1, 1, 2]),
        wrapping,
        draw.choice([None, 0.5]),
    )
    return recipe, draw.randint(1, 4)


@pytest.mark.parametrize("seed", range(26))
def test_training_is_that_without_shares(seed: int) -> None:
    compare(*random_recipe(seed))


def test_a_closure_computes_the_loss() -> None:
    compare(Recipe(adamw, closure=True), 3)


def test_gradients_travel_compressed() -> None:
    recipe = Recipe(sgd, wrapping={"compression": hvd.Compression.bf16})
    (wanted, _), _ = run_ranks(2, train, recipe, False)
    for params, _ in run_ranks(2, train, recipe, True):
        for param, want in zip(params, wanted, strict=True):
            torch.testing.assert_close(param, want, rtol=1e-2, atol=1e-2)


def test_weights_count_in_the_average() -> None:
    def weighed(shard_state: bool) -> list[torch.Tensor]:
        hvd.init()
        wrapping = {"weight": float(hvd.rank())}
        return train(Recipe(adamw, wrapping=wrapping), shard_state)[0]

    wanted = run_ranks(3, weighed, False)[0]
    for params in run_ranks(3, weighed, True):
        for param, want in zip(params, wanted, strict=True):
            torch.testing.assert_close(param, want, rtol=1e-9, atol=1e-12)

    def without_any() -> None:
        hvd.init()
        train(Recipe(adamw, wrapping={"weight": 0.0}), True)

    with pytest.raises(MismatchError, match="weights of all ranks are 0"):
        run_ranks(2, without_any)


def test_ranks_outside_of_the_set_train_alone() -> None:
    def body(shard_state: bool) -> tuple[list[torch.Tensor], Any]:
        hvd.init()
        pair = hvd.add_process_set([0, 2])
        return train(Recipe(adamw, wrapping={"process_set": pair}), shard_state)

    wanted, found = run_ranks(3, body, False), run_ranks(3, body, True)
    for (params, state), (want, wanted_state) in zip(found, wanted, strict=True):
        torch.testing.assert_close(params, want, rtol=1e-9, atol=1e-12)
        assert_same_state(state, wanted_state)


def linear(seed: int = 3, size: int = 40) -> torch.nn.Linear:
    model = torch.nn.Linear(size, 3).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=F64))
    return model


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    optimizer.zero_grad()
    model(torch.randn(2, 40, generator=generator, dtype=F64)).square().sum().backward()
    optimizer.step()


def sharded(model: torch.nn.Module, make: Any = adamw, **options: Any) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), shard_state=True, **options
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_each_rank_keeps_its_share_of_the_state(num_ranks: int) -> None:
    def body() -> int:
        hvd.init()
        model = linear(size=512)
        optimizer = sharded(model)
        model(torch.ones(1, 512, dtype=F64)).sum().backward()
        optimizer.step()
        values = (value for state in optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in values if value.dim())

    whole = 2 * 8 * (512 * 3 + 3)
    shares = run_ranks(num_ranks, body)
    assert sum(shares) == whole
    assert max(shares) <= whole / num_ranks + 2 * 64 * 2


def test_state_that_there_is_goes_into_shares_and_out_again() -> None:
    """Also where the optimizer is wrapped in the middle of a training, and by other numbers."""

    def whole(state: Any = None) -> tuple[list[Any], Any]:
        hvd.init()
        model = linear()
        plain = adamw(model.parameters())
        if state is None:
            model(torch.ones(1, 40, dtype=F64)).sum().backward()
            plain.step()
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), shard_state=True)
        assert not plain.state
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        return model.state_dict(), optimizer.state_dict()

    first = run_ranks(2, whole)[1]
    assert first[1]["state"][0]["exp_avg"].shape == (3, 40)
    for num_ranks in (1, 3):
        for other in run_ranks(num_ranks, whole, copy.deepcopy(first)):
            assert_same_state(other[1], first[1])
    alone = linear()
    plain = adamw(alone.parameters())
    plain.load_state_dict(first[1])
    alone(torch.ones(1, 40, dtype=F64)).sum().backward()
    plain.step()


def test_state_and_groups_before_the_first_step() -> None:
    def body(shard_state: bool) -> Any:
        hvd.init()
        model, later = linear(), linear(4)
        plain = adamw(model.parameters())
        model(torch.ones(1, 40, dtype=F64)).sum().backward()
        plain.step()
        optimizer = hvd.DistributedOptimizer(plain, shard_state=shard_state)
        optimizer.add_param_group({"params": later.parameters(), "lr": 0.5})
        take_step(later, optimizer, 1)
        return optimizer.state_dict()

    wanted = run_ranks(2, body, False)[0]
    for state in run_ranks(2, body, True):
        assert_same_state(state, wanted)


def test_scaled_losses() -> None:
    """All ranks skip the step in which one of them has an infinite gradient."""

    def body(shard_state: bool, fused: bool) -> tuple[list[Any], list[float]]:
        hvd.init()
        model = linear().float()
        plain = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        optimizer = hvd.DistributedOptimizer(
            plain, model.named_parameters(), shard_state=shard_state
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        scales = []
        for step in range(5):
            generator = torch.Generator().manual_seed(100 * step + hvd.rank())
            optimizer.zero_grad()
            loss = model(torch.randn(2, 40, generator=generator)).square().mean()
            is_bad = step == 2 and hvd.rank() == 1
            scaler.scale(loss * (torch.inf if is_bad else 1.0)).backward()
            if step == 3:
                scaler.unscale_(optimizer)
                hvd.clip_grad_norm_(optimizer, 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [param.detach().clone() for param in model.parameters()], scales

    for fused in (False, True):
        wanted = run_ranks(3, body, False, fused)
        for params, scales in run_ranks(3, body, True, fused):
            assert scales == wanted[0][1] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0]
            torch.testing.assert_close(params, wanted[0][0], rtol=1e-4, atol=1e-5)


def test_the_norm_is_that_of_all_shares() -> None:
    def body() -> tuple[float, float, float]:
        hvd.init()
        model = linear()
        optimizer = sharded(model, sgd)
        model(torch.full((1, 40), float(hvd.rank()), dtype=F64)).sum().backward()
        norm = hvd.clip_grad_norm_(optimizer, 2.0)
        clipped = hvd.gradient_norm(optimizer)
        optimizer.step()
        with pytest.raises(UsageError, match="max_norm=-1"):
            hvd.clip_grad_norm_(optimizer, -1)
        optimizer.zero_grad()
        model(torch.full((1, 40), torch.nan, dtype=F64)).sum().backward()
        with pytest.raises(RuntimeError, match="norm of the gradients is nan"):
            hvd.clip_grad_norm_(optimizer, 1.0, error_if_nonfinite=True)
        return float(norm), float(clipped), float(hvd.gradient_norm(optimizer))

    for norm, clipped, _ in run_ranks(2, body):
        assert norm == pytest.approx((0.25 * 120 + 3) ** 0.5)
        assert clipped == pytest.approx(2.0)


def test_groups_that_come_later_and_parameters_that_thaw() -> None:
    def body(shard_state: bool) -> tuple[list[Any], Any]:
        hvd.init()
        model = torch.nn.Sequential(linear(), torch.nn.Linear(3, 2).double(), linear(4, 2))
        with torch.no_grad():
            for param in model[1].parameters():
                param.fill_(0.5)
        model[0].weight.requires_grad_(False)
        plain = adamw([*model[0].parameters(), *model[1].parameters()])
        optimizer = hvd.DistributedOptimizer(
            plain, model.named_parameters(), shard_state=shard_state
        )
        take_step(model, optimizer, 0)
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.1})
        take_step(model, optimizer, 1)
        model[0].weight.requires_grad_(True)
        model[1].bias.requires_grad_(False)
        take_step(model, optimizer, 2)
        take_step(model, optimizer, 3)
        return [param.detach() for param in model.parameters()], optimizer.state_dict()

    for num_ranks in (1, 3):
        (want, wanted_state), *_ = run_ranks(num_ranks, body, False)
        for params, state in run_ranks(num_ranks, body, True):
            torch.testing.assert_close(params, want, rtol=1e-9, atol=1e-12)
            assert_same_state(state, wanted_state)


def test_parameters_that_the_program_replaces() -> None:
    def body(shard_state: bool) -> list[torch.Tensor]:
        hvd.init()
        model = linear()
        optimizer = hvd.DistributedOptimizer(
            adamw(model.parameters()), model.named_parameters(), shard_state=shard_state
        )
        for step in range(3):
            if step == 1:
                model.weight.data = model.weight.data * 2
            take_step(model, optimizer, step)
        return [param.detach() for param in model.parameters()]

    wanted = run_ranks(2, body, False)[0]
    for params in run_ranks(2, body, True):
        torch.testing.assert_close(params, wanted, rtol=1e-9, atol=1e-12)


def test_gradients_that_are_changed_where_nobody_reads_them_are_an_error() -> None:
    def body(how: str) -> None:
        hvd.init()
        model = linear()
        optimizer = sharded(model)
        take_step(model, optimizer, 0)
        optimizer.zero_grad()
        model(torch.ones(1, 40, dtype=F64)).sum().backward()
        if how == "synchronize":
            optimizer.synchronize()
        if how == "dropped":
            model.weight.grad = None
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for _ in range(2):
            with pytest.raises(UsageError, match=r"hvd\.clip_grad_norm_"):
                optimizer.step()
        take_step(model, optimizer, 1)
        optimizer.zero_grad()
        model(torch.ones(1, 40, dtype=F64)).sum().backward()
        with (
            optimizer.skip_synchronize(),
            pytest.raises(UsageError, match=r"skip_synchronize\(\) without synchronize"),
        ):
            optimizer.step()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    for how in ("synchronize", "at once", "dropped"):
        run_ranks(2, body, how)


class Normed(torch.optim.SGD):
    """Divides each gradient by its norm."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad = param.grad / param.grad.norm()
        return super().step(closure)


class Globally(torch.optim.SGD):
    """Clips by the norm of all its parameters."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class Twice(torch.optim.SGD):
    """Calls the closure before and after the update."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        return result if closure is None else closure()


def lbfgs(params: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(list(params))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "LBFGS": (lbfgs, {}, "LBFGS cannot be cut"),
    "Adafactor": (torch.optim.Adafactor, {}, "Adafactor updates an element of a parameter by more"),
    "SparseAdam": (torch.optim.SparseAdam, {}, "SparseAdam cannot be cut"),
    "norms": (lambda p: Normed(p, lr=0.1), {}, "Normed updates an element of a parameter by more"),
    "all": (
        lambda p: Globally(p, lr=0.1),
        {},
        "Globally updates an element of a parameter by more",
    ),
    "groups": (sgd, {"groups": 2}, "shard_state=True with groups"),
    "op": (sgd, {"op": hvd.Max}, "shard_state=True with op=MAX"),
    "adasum": (sgd, {"op": hvd.Adasum}, "shard_state=True with op=ADASUM"),
    "compression": (
        sgd,
        {"compression": hvd.Compression.none()},
        "Compression.none, fp16 and bf16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("alone")
def test_what_cannot_be_cut_is_refused_before_any_work(case: str) -> None:
    make, options, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        sharded(linear(), make, **options)


@pytest.mark.usefixtures("alone")
def test_parameters_that_cannot_be_cut_are_refused() -> None:
    for param, problem in (
        (torch.nn.Parameter(torch.ones(3, dtype=torch.complex64)), "has the dtype"),
        (torch.nn.Parameter(torch.ones(1).expand(4)), "has gaps in its memory"),
        (torch.nn.Parameter(torch.ones(4, device="meta")), "is on meta instead of the CPU"),
    ):
        with pytest.raises(UsageError, match=f"parameter allreduce.noname.0.0 {problem}"):
            hvd.DistributedOptimizer(sgd([param]), shard_state=True)


@pytest.mark.usefixtures("alone")
def test_what_needs_the_whole_state_on_one_rank_is_refused() -> None:
    model = linear()
    optimizer = sharded(model)
    take_step(model, optimizer, 0)
    with pytest.raises(UsageError, match="cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    with pytest.raises(UsageError, match="check_in_sync cannot compare"):
        hvd.check_in_sync(optimizer)
    with pytest.raises(UsageError, match="LocalSGD and DiLoCo keep"):
        hvd.LocalSGD(optimizer, every=2)
    with pytest.raises(MismatchError, match="the root has only its share"):
        hvd.broadcast_optimizer_state(optimizer, 0)
    with pytest.raises(UsageError, match=r"the state has groups of \[1\] parameters"):
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
    twice = sharded(linear(), lambda params: Twice(params, lr=0.1))
    with pytest.raises(UsageError, match="Twice calls its closure several times"):
        twice.step(lambda: torch.ones(()))


def test_options_are_broadcast_before_the_first_step() -> None:
    def body() -> float:
        hvd.init()
        optimizer = sharded(linear(), lambda p: torch.optim.SGD(p, lr=0.1 * (1 + hvd.rank())))
        hvd.broadcast_optimizer_state(optimizer, 1)
        return optimizer.param_groups[0]["lr"]

    assert run_ranks(2, body) == [0.2, 0.2]


def test_sparse_gradients_travel_dense_or_not_at_all() -> None:
    def body(sparse: bool, densifies: bool, shard_state: bool = True) -> torch.Tensor:
        hvd.init()
        model = torch.nn.Embedding(6, 4, sparse=sparse).double()
        with torch.no_grad():
            model.weight.fill_(1.0)
        optimizer = hvd.DistributedOptimizer(
            adamw(model.parameters()),
            model.named_parameters(),
            shard_state=shard_state,
            sparse_as_dense=densifies,
        )
        model(torch.tensor([hvd.rank(), 3])).square().sum().backward()
        optimizer.step()
        return model.weight.detach()

    wanted, _ = run_ranks(2, body, False, False, False)
    for weight in run_ranks(2, body, True, True):
        torch.testing.assert_close(weight, wanted, rtol=1e-12, atol=0)
    with pytest.raises(UsageError, match="gradient of weight is sparse"):
        run_ranks(2, body, True, False)


def test_a_rank_that_joins_cannot_stand_in() -> None:
    def body() -> None:
        hvd.init()
        model = linear()
        optimizer = sharded(model)
        for step in range(2 if hvd.rank() else 1):
            take_step(model, optimizer, step)
        hvd.join()

    with pytest.raises(MismatchError, match="all ranks must take the same number of steps"):
        run_ranks(2, body)


def test_state_of_some_ranks_only_is_an_error() -> None:
    def body() -> None:
        hvd.init()
        model = linear()
        optimizer = sharded(model)
        if hvd.rank() == 0:
            alone = linear()
            plain = adamw(alone.parameters())
            alone(torch.ones(1, 40, dtype=F64)).sum().backward()
            plain.step()
            optimizer.load_state_dict(plain.state_dict())
        take_step(model, optimizer, 0)

    with pytest.raises(UsageError, match="some ranks have the optimizer state of their shares"):
        run_ranks(2, body)
