"""Steps of two optimizers on several ranks, which are threads of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import horovod.torch as hvd
from horovod.testing import run_ranks
from landscapes.losses import Perceptual
from landscapes.nets import preset_named
from landscapes.nets.segmenter import Segmenter
from landscapes.nets.start import initialize, plain_weights
from landscapes.train.batches import Stream
from landscapes.train.networks import Networks
from landscapes.train.step import TERMS, Trainer

if TYPE_CHECKING:
    from landscapes.data import Pairs

SEED = 5
SMOKE = preset_named("smoke32")


def make_trainer(dtype: torch.dtype = torch.float32, *, synced: bool = True) -> Trainer:
    guide = Segmenter(4)
    initialize(guide, 1.4, 0)
    networks = Networks(SMOKE, SEED, synced=synced)
    return Trainer(networks.to(dtype), Perceptual(guide.to(dtype)))


def take_steps(
    pairs: Pairs, batch: int, steps: int, dtype: torch.dtype, synced: bool
) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """Return all weights and buffers after some steps, and the losses of all ranks by step."""
    hvd.init()
    trainer = make_trainer(dtype, synced=synced)
    stream = Stream(pairs, SEED, SMOKE.z_dim)
    losses = []
    for step in range(steps):
        position = (step * hvd.size() + hvd.rank()) * batch
        found = trainer.step(stream.batch(position, batch).to("cpu", dtype), step + 1)
        losses.append(hvd.allreduce(found, op=hvd.Average).tolist())
    hvd.check_in_sync(trainer.networks if synced else trainer.networks.named_parameters())
    return trainer.networks.state_dict(), losses


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between two states, relative to 1 or the larger value."""
    return max(
        ((one[key] - other[key]).abs() / other[key].abs().clamp(min=1)).max().item() for key in one
    )


@pytest.fixture(scope="module")
def alone(pairs: Pairs) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """One rank with 8 pictures a step."""
    return run_ranks(1, take_steps, pairs, 8, 5, torch.float64, True)[0]


def test_two_ranks_of_four_train_what_one_rank_of_eight_trains(pairs: Pairs, alone: Any) -> None:
    both = run_ranks(2, take_steps, pairs, 4, 5, torch.float64, True)
    assert apart(both[0][0], both[1][0]) == 0
    assert apart(both[0][0], alone[0]) < 1e-6
    for found, expected in zip(both[0][1], alone[1], strict=True):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_without_synchronized_statistics_they_train_something_else(
    pairs: Pairs, alone: Any
) -> None:
    both = run_ranks(2, take_steps, pairs, 4, 5, torch.float64, False)
    weights = {key: each for key, each in both[0][0].items() if "running_" not in key}
    assert apart(weights, {key: alone[0][key] for key in weights}) > 1e-3
    assert both[0][1][0] != pytest.approx(alone[1][0], rel=1e-6)


def test_ranks_are_equal_bit_for_bit_after_50_steps(pairs: Pairs) -> None:
    one, other = run_ranks(2, take_steps, pairs, 1, 50, torch.float32, True)
    # Every weight, buffer, singular vector and average; take_steps has compared hashes, too.
    assert all(torch.equal(one[0][key], other[0][key]) for key in one[0])
    assert any(key.endswith("running_var") for key in one[0])
    assert any(key.endswith("._u") for key in one[0])


def test_training_lowers_the_distance_of_features(pairs: Pairs) -> None:
    ((_, losses),) = run_ranks(1, take_steps, pairs, 4, 60, torch.float32, True)
    first, last = torch.tensor(losses[:10]).mean(0), torch.tensor(losses[-10:]).mean(0)
    for term in ("features", "perceptual"):
        assert last[TERMS.index(term)] < 0.85 * first[TERMS.index(term)]


def test_the_pass_of_one_side_leaves_no_gradient_in_the_other(pairs: Pairs) -> None:
    def look() -> tuple[bool, bool]:
        hvd.init()
        trainer = make_trainer()
        batch = Stream(pairs, SEED, SMOKE.z_dim).batch(hvd.rank() * 2, 2)
        terms, judging = trainer._forward(batch)
        painters = list(trainer.networks.painter.parameters())
        judges = list(trainer.networks.discriminator.parameters())
        torch.stack(terms).sum().backward(inputs=painters, retain_graph=True)
        untouched = all(each.grad is None for each in judges)
        before = [each.grad.clone() for each in painters if each.grad is not None]
        judging.backward(inputs=judges)
        after = [each.grad for each in painters if each.grad is not None]
        kept = len(before) == len(after) == len(painters)
        trainer.painting.step()
        trainer.judging.step()
        return untouched, kept

    assert run_ranks(2, look) == [(True, True)] * 2


def test_two_optimizers_may_have_parameters_of_the_same_name() -> None:
    def train() -> list[torch.Tensor]:
        hvd.init()
        models = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
        for each in models:
            torch.nn.init.ones_(each.weight)
            torch.nn.init.zeros_(each.bias)
        optimizers = [
            hvd.DistributedOptimizer(
                torch.optim.SGD(each.parameters(), 0.1), named_parameters=each.named_parameters()
            )
            for each in models
        ]
        for number, model in enumerate(models):
            (model(torch.ones(1, 2)) * (hvd.rank() + 1) * (number + 1)).sum().backward()
        for each in optimizers:
            each.step()
        return [each.weight.detach() for each in models]

    for weights in run_ranks(2, train):
        # Gradients of the ranks are 1 and 2, in the second model twice that.
        torch.testing.assert_close(weights[0], torch.full((1, 2), 1 - 0.15))
        torch.testing.assert_close(weights[1], torch.full((1, 2), 1 - 0.3))


def test_the_average_follows_the_plain_weights() -> None:
    def follow() -> None:
        hvd.init()
        networks = Networks(SMOKE, SEED)
        average = dict(networks.average.named_parameters())
        for name, value in plain_weights(networks.painter):
            assert torch.equal(average[name], value)
        first = average["generator.last.weight"].clone()
        with torch.no_grad():
            networks.painter.generator.last.weight.add_(1.0)
        networks.update_average(91)  # a share of 0.09
        torch.testing.assert_close(average["generator.last.weight"], first + 0.09)

    run_ranks(1, follow)


def test_a_discriminator_that_is_frozen_meanwhile_trains_as_on_one_rank() -> None:
    def train(inputs: list[float]) -> list[float]:
        hvd.init()
        painter, judge = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        optimizers = []
        for model, weight in ((painter, 0.5), (judge, 2.0)):
            torch.nn.init.constant_(model.weight, weight)
            torch.nn.init.zeros_(model.bias)
            adam = torch.optim.Adam(model.parameters(), 0.1)
            named = model.named_parameters()
            optimizers.append(hvd.DistributedOptimizer(adam, named_parameters=named))
        share = len(inputs) // hvd.size()
        mine = torch.tensor(inputs[hvd.rank() * share :][:share]).unsqueeze(1)
        for _ in range(3):
            judge.requires_grad_(False)
            judge(painter(mine)).square().mean().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            judge.requires_grad_(True)
            (judge(painter(mine).detach()) - 1).square().mean().backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
        return [each.item() for model in (painter, judge) for each in model.parameters()]

    inputs = [1.0, 2.0, -1.0, 0.5]
    (alone,) = run_ranks(1, train, inputs)
    for found in run_ranks(2, train, inputs):
        assert found == pytest.approx(alone, rel=1e-4)
