"""When ranks tell each other what they have used in a step, with ranks as threads."""

from __future__ import annotations

import pytest
import torch
from thread_ranks import run_ranks

import horovod.torch as hvd
from horovod.torch.optimizer import ReducingOptimizer

STEPS = 5


def adapter(name: str) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """A layer behind one that is frozen, and an optimizer of both, as of a model that is tuned."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    for param in model.parameters():
        torch.nn.init.ones_(param)
    model[0].requires_grad_(False)
    names = [(f"{name}.{key}", param) for key, param in model.named_parameters()]
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hvd.DistributedOptimizer(plain, names)


def test_ranks_step_optimizers_with_frozen_parameters_in_different_orders() -> None:
    def body(rank: int) -> None:
        pairs = [adapter(name) for name in ("first", "second")]
        for step in range(STEPS):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                model(torch.full((1, 2), float(rank + step))).sum().backward()
            for _, optimizer in reversed(pairs) if rank else pairs:
                optimizer.step()

    run_ranks(2, body)


def test_what_is_trainable_again_counts_as_used_in_its_first_step() -> None:
    def body(rank: int) -> None:
        model, optimizer = adapter("layer")
        for step in range(STEPS):
            optimizer.zero_grad()
            if step == STEPS - 1:
                model[0].requires_grad_(True)
            # Rank 1 does not use what is trainable again.
            hidden = model[0](torch.ones(1, 2))
            model[1](hidden.detach() if rank else hidden).sum().backward()
            optimizer.step()
        gradients = [param.grad for param in model[0].parameters()]
        assert all(gradient is not None and gradient.abs().sum() > 0.0 for gradient in gradients)

    run_ranks(2, body)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_rank_of_weight_0_tells_in_the_backward_pass_as_others_do(forgets: bool) -> None:
    def body(rank: int) -> None:
        model = torch.nn.Linear(2, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), weight=float(rank))
        assert isinstance(optimizer, ReducingOptimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.full((1, 2), float(rank + step))).sum().backward()
            if step % 2:
                optimizer.step()
            elif forgets:
                optimizer.load_state_dict(optimizer.state_dict())
            else:
                optimizer.set_backward_passes_per_step(1)

    run_ranks(2, body)
