"""Starting all ranks from the same state."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from thread_ranks import run_ranks

import horovod.torch as hvd
from horovod.errors import MismatchError

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"betas": (0.8, 0.95), "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adadelta": {},
    "Adagrad": {"lr_decay": 0.01},
    "Adafactor": {},
    "ASGD": {"t0": 1.0},
    "RMSprop": {"centered": True, "momentum": 0.1},
    "Rprop": {"etas": (0.4, 1.3)},
    "SparseAdam": {},
}


def test_every_optimizer_of_torch_is_tried() -> None:
    kinds = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    # Muon takes matrices only, and its state is one tensor each, as that of SGD.
    assert kinds - {"Optimizer", "LBFGS", "Muon"} <= set(OPTIMIZERS)


def model_of(rank: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    # The default generator belongs to all threads.
    generator = torch.Generator().manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(dtype)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
    return model


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for param in model.parameters():
        gradient = torch.full_like(param, 0.1 + rank)
        param.grad = (
            gradient.to_sparse() if isinstance(optimizer, torch.optim.SparseAdam) else gradient
        )
    # The plain step, as the wrapped one would reduce.
    type(optimizer).__mro__[2].step(optimizer) if hasattr(
        optimizer, "synchronize"
    ) else optimizer.step()


def equal(a: Any, b: Any) -> bool:
    """Equal values of equal types, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and bool(torch.equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


@pytest.mark.parametrize("form", ["state_dict", "named_parameters", "tensors"])
def test_parameters_become_those_of_the_root(form: str) -> None:
    def body(rank: int) -> None:
        for root in range(2):
            model = model_of(rank)
            model.register_buffer("table", torch.full((3,), rank, dtype=torch.int32))
            if form == "state_dict":
                hvd.broadcast_parameters(model.state_dict(), root_rank=root)
                assert (model.table == root).all()
            elif form == "named_parameters":
                hvd.broadcast_parameters(list(model.named_parameters()), root_rank=root)
            else:
                hvd.broadcast_parameters(list(model.parameters()), root)
            expected = model_of(root)
            for mine, roots in zip(model.parameters(), expected.parameters(), strict=True):
                assert torch.equal(mine, roots)

    run_ranks(2, body)


def test_parameters_of_any_layout_and_order_of_keys() -> None:
    def body(rank: int) -> None:
        image = torch.full((1, 2, 3, 3), float(rank)).contiguous(memory_format=torch.channels_last)
        params = {
            "b": torch.full((4, 3), float(rank)).t(),
            "a": image,
            "c": torch.full((), rank),
            "d": torch.ones(0),
        }
        if rank:
            params = dict(reversed(params.items()))
        hvd.broadcast_parameters(params, root_rank=1)
        assert all((tensor == 1).all() for tensor in params.values())
        assert image.is_contiguous(memory_format=torch.channels_last)

    run_ranks(2, body)


@pytest.mark.parametrize(
    "params",
    [model_of(0).parameters(), torch.ones(1), "abc", {"a": 1}, [("a", 1)], [None], [("a",)]],
)
def test_other_kinds_of_parameters_are_refused(params: Any) -> None:
    def body(_: int) -> None:
        with pytest.raises(ValueError, match="param"):
            hvd.broadcast_parameters(params, root_rank=0)

    run_ranks(1, body)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_becomes_that_of_the_root(name: str, wrapped: bool) -> None:
    def body(rank: int) -> None:
        model = model_of(rank)
        first, second = model
        options = OPTIMIZERS[name] if rank == 0 else {}
        groups = [
            {"params": list(first.parameters()), "lr": 0.5 / (rank + 1)},
            {"params": list(second.parameters())},
        ]
        optimizer: Any = getattr(torch.optim, name)(groups, lr=0.1 * (rank + 1), **options)
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        # Only the root has a state; the other has a stale one of one parameter.
        if rank == 0:
            take_step(model, optimizer, rank)
            take_step(model, optimizer, rank)
        else:
            optimizer.state[first.weight] = {"stale": 1}
        before = copy.deepcopy(optimizer.state_dict())
        weights = copy.deepcopy(model.state_dict())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        after = optimizer.state_dict()
        if rank == 0:
            assert equal(after, before)
        assert equal(model.state_dict(), weights), "a step was taken"
        assert equal(after, hvd.broadcast_object(after, 0))
        # And the ranks go on alike.
        hvd.broadcast_parameters(model.state_dict(), 0)
        take_step(model, optimizer, 0)
        for parameter in model.parameters():
            everyones = hvd.allgather(parameter.detach().reshape(1, -1))
            assert torch.equal(everyones[0], everyones[1])

    run_ranks(2, body)


def test_options_arrive_in_the_same_dictionaries() -> None:
    def body(rank: int) -> None:
        model = model_of(rank)
        plain = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        if rank == 0:
            optimizer.param_groups[0]["lr"] = 0.25
            optimizer.param_groups[0]["betas"] = (0.5, 0.75)
            optimizer.param_groups[0]["mine"] = [None, True, 2, "x"]
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for group in (plain.param_groups[0], optimizer.param_groups[0]):
            assert type(group["lr"]) is float
            assert group["lr"] == 0.25
            assert group["betas"] == (0.5, 0.75)
            assert group["mine"] == [None, True, 2, "x"]
        assert scheduler.optimizer.param_groups[0] is optimizer.param_groups[0]

    run_ranks(2, body)


def test_tensors_of_any_kind_arrive() -> None:
    def body(rank: int) -> None:
        model = model_of(rank)
        weight = model[0].weight
        lr = torch.tensor(0.5 if rank == 0 else 0.125)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        if rank == 0:
            optimizer.state[weight] = {
                "transposed": torch.arange(12.0).reshape(3, 4).t(),
                "expanded": torch.ones(1).expand(4),
                "complex": torch.tensor([1 + 2j]).conj(),
                "eighth": torch.ones(3).to(torch.float8_e4m3fn),
                "empty": torch.ones(0, 3),
                "nested": {"history": [torch.ones(2), (torch.zeros(()), 3)]},
            }
            optimizer.state["global"] = {"count": torch.tensor(7), "note": "x"}
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state = optimizer.state[weight]
        assert state["transposed"].stride() == (1, 4)
        assert torch.equal(state["transposed"], torch.arange(12.0).reshape(3, 4).t())
        assert state["expanded"].tolist() == [1.0] * 4
        assert state["complex"].tolist() == [1 - 2j]
        assert state["eighth"].dtype is torch.float8_e4m3fn
        assert state["empty"].shape == (0, 3)
        assert equal(state["nested"], {"history": [torch.ones(2), (torch.zeros(()), 3)]})
        assert equal(optimizer.state["global"], {"count": torch.tensor(7), "note": "x"})
        assert optimizer.param_groups[0]["lr"] == 0.5

    run_ranks(2, body)


def test_half_parameters_may_keep_a_float_state() -> None:
    def body(rank: int) -> None:
        model = model_of(rank, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if rank == 0:
            optimizer.state[model[0].weight]["master"] = torch.full((4, 3), 1 / 3)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        master = optimizer.state[model[0].weight]["master"]
        assert master.dtype is torch.float32
        assert torch.equal(master, torch.full((4, 3), 1 / 3))

    run_ranks(2, body)


def test_frozen_parameters_and_stateless_optimizers() -> None:
    def body(rank: int) -> None:
        model = model_of(rank)
        model[0].weight.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 0.2
        assert not optimizer.state

    run_ranks(2, body)


def test_lbfgs_is_refused() -> None:
    def body(_: int) -> None:
        with pytest.raises(ValueError, match="LBFGS"):
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model_of(0).parameters()), 0)

    run_ranks(1, body)


def test_different_groups_are_an_error_on_all_ranks() -> None:
    def body(rank: int) -> None:
        model = model_of(rank)
        params = list(model.parameters())
        optimizer = torch.optim.SGD(params[rank:], lr=0.1)
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 1: .*\[3\].*root.*\[4\]"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    run_ranks(2, body)


def test_no_warning_is_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        def body(rank: int) -> None:
            model = model_of(rank)
            optimizer = torch.optim.Adam(model.parameters())
            take_step(model, optimizer, rank)
            hvd.broadcast_parameters(model.state_dict(), 0)
            hvd.broadcast_optimizer_state(optimizer, 0)

        run_ranks(2, body)


def differing_model(rank: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Linear(4, 2 if rank else 5, bias=rank != 1)
    )


DIFFERENCES = (
    "'1.bias' is float32 (5,) on rank 0, missing on rank 1, float32 (2,) on rank 2; "
    "'1.weight' is float32 (5, 4) on rank 0, float32 (2, 4) on ranks 1, 2. "
)


@pytest.mark.parametrize("as_list", [False, True])
def test_parameters_that_differ_are_named_before_they_are_sent(as_list: bool) -> None:
    def body(rank: int) -> str:
        model = differing_model(rank)
        params = list(model.named_parameters()) if as_list else model.state_dict()
        with pytest.raises(MismatchError) as caught:
            hvd.broadcast_parameters(params, 0)
        return str(caught.value)

    (text,) = set(run_ranks(3, body))
    assert DIFFERENCES in text


def test_the_first_step_names_the_parameters_that_differ() -> None:
    def body(rank: int) -> str:
        model = differing_model(rank)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(MismatchError) as caught:
            optimizer.step()
        return str(caught.value)

    (text,) = set(run_ranks(3, body))
    assert DIFFERENCES in text


def test_a_rank_that_joins_before_its_first_step_is_compared_when_it_is_back() -> None:
    def body(rank: int) -> None:
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        for _ in range(2 * (rank != 1)):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        hvd.join()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    run_ranks(3, body)
