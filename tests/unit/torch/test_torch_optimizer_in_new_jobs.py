"""A DistributedOptimizer that goes on in a new job, with ranks as threads."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from thread_ranks import ThreadRanks, run_ranks
from torch_training import F64, assert_ranks_agree, backward, make_model, wrap

import horovod.torch as hvd

if TYPE_CHECKING:
    from horovod.torch.optimizer import ReducingOptimizer


def test_a_survivor_and_a_newcomer_of_a_restart_agree() -> None:
    models = [make_model(0, F64) for _ in range(2)]
    made: dict[int, ReducingOptimizer] = {}

    def first_life(rank: int) -> None:
        made[rank] = wrap(models[rank])
        optimizer = made[rank]
        backward(models[rank], rank)
        optimizer.step()
        optimizer.zero_grad()

    run_ranks(2, first_life)

    def second_life(rank: int) -> None:
        model = models[rank] if rank == 0 else make_model(0, F64)
        optimizer = made[0] if rank == 0 else wrap(model)
        optimizer.zero_grad()
        hvd.broadcast_parameters(model.state_dict(), 0)
        backward(model, rank)
        optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, second_life)


def test_a_failed_job_can_be_restored_in_a_new_one() -> None:
    models = [make_model(0, F64) for _ in range(2)]
    made: dict[int, ReducingOptimizer] = {}
    states: dict[int, Any] = {}
    with ThreadRanks(2) as ranks:

        def first_life(rank: int) -> None:
            made[rank] = wrap(models[rank])
            states[rank] = copy.deepcopy(made[rank].state_dict())
            hvd.barrier()
            if rank == 1:
                ranks.engines[1].close("the test ends this rank")
                return

            def step_without_the_other() -> None:
                backward(models[0], 0)
                made[0].step()

            with pytest.raises(hvd.HorovodInternalError, match="the test ends this rank"):
                step_without_the_other()

        ranks.run(first_life)

    def second_life(rank: int) -> None:
        optimizer = made[rank]
        optimizer.load_state_dict(states[rank])
        optimizer.zero_grad()
        backward(models[rank], rank)
        optimizer.step()
        assert_ranks_agree(models[rank])

    run_ranks(2, second_life)


def test_what_a_lost_job_had_in_flight_is_not_sent_in_a_new_one() -> None:
    models = [make_model(0, F64) for _ in range(2)]
    made: dict[int, ReducingOptimizer] = {}
    with ThreadRanks(2) as ranks:

        def first_life(rank: int) -> None:
            made[rank] = wrap(models[rank])
            hvd.barrier()
            if rank == 1:
                ranks.engines[1].close("the test ends this rank")
                return
            backward(models[0], 0)
            with pytest.raises(hvd.HorovodInternalError, match="the test ends this rank"):
                hvd.barrier()

        ranks.run(first_life)

    def second_life(rank: int) -> None:
        for step in range(2):
            made[rank].zero_grad()
            backward(models[rank], rank, step)
            made[rank].step()
        assert_ranks_agree(models[rank])

    run_ranks(2, second_life)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_survivors_and_newcomers_of_a_new_job_agree_on_names(op: int) -> None:
    """A rank keeps its second optimizer from the job before; the other one makes its first."""
    kept: list[Any] = []

    def wrapped() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(2, 1)
        for param in model.parameters():
            torch.nn.init.constant_(param, 0.25)  # all threads draw from one generator
        plain = torch.optim.SGD(model.parameters(), lr=0.5)
        return model, hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)

    def step(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + rank)).sum().backward()
        optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()

    def before(rank: int) -> None:
        used, last = wrapped(), wrapped()
        step(rank, *used)
        step(rank, *last)
        if rank == 0:
            kept.append(last)

    def after(rank: int) -> list[list[float]]:
        first = kept[0] if rank == 0 else wrapped()
        hvd.broadcast_parameters(first[0].state_dict(), root_rank=0)
        second = wrapped()
        return [step(rank, *first), step(rank, *second), step(rank, *first)]

    run_ranks(2, before)
    one, other = run_ranks(2, after)
    assert one == other
