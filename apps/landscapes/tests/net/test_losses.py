"""Values of losses on tensors small enough to compute by hand."""

from __future__ import annotations

import pytest
import torch

from landscapes.losses import (
    Perceptual,
    divergence,
    feature_matching,
    hinge_of_discriminator,
    hinge_of_generator,
)
from landscapes.nets.segmenter import Segmenter


def judgments(*values: list[float]) -> list[list[torch.Tensor]]:
    """Return one scale with a layer for each list."""
    return [[torch.tensor(each, requires_grad=True) for each in values]]


def test_the_hinge_counts_what_is_within_the_margin() -> None:
    fake, real = judgments([0.0], [-2.0, 0.5]), judgments([0.0], [2.0, 0.25])
    # max(0, 1 - 2), max(0, 1 + 0.5); max(0, 1 - 2), max(0, 1 - 0.25)
    assert hinge_of_discriminator(fake, real).item() == pytest.approx(1.5 / 2 + 0.75 / 2)
    assert hinge_of_generator(fake).item() == pytest.approx(1.5 / 2)


def test_scales_weigh_the_same_whatever_their_size() -> None:
    fake = [*judgments([1.0]), *judgments([4.0, 4.0, 4.0])]
    assert hinge_of_generator(fake).item() == pytest.approx(-2.5)


def test_feature_matching_leaves_judgments_out_and_real_features_alone() -> None:
    fake, real = judgments([1.0, 3.0], [2.0], [9.0]), judgments([0.0, 1.0], [5.0], [0.0])
    loss = feature_matching(fake, real)
    assert loss.item() == pytest.approx((1 + 2) / 2 + 3)
    loss.backward()
    assert fake[0][0].grad is not None
    assert real[0][0].grad is None
    assert fake[0][2].grad is None


def test_divergence_is_a_mean_over_pictures_with_free_nats() -> None:
    mean = torch.tensor([[1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    log_variance = torch.zeros(2, 2)
    # 0.5 of one number; each of the three others counts 0.1.
    loss = divergence(mean, log_variance, free=0.1)
    assert loss.item() == pytest.approx((0.5 + 0.1 + 0.2) / 2)
    loss.backward()
    assert mean.grad is not None
    assert mean.grad.tolist() == [[0.5, 0.0], [0.0, 0.0]]


def test_divergence_of_a_batch_is_the_mean_of_its_parts() -> None:
    mean, log_variance = torch.randn(8, 4) / 2, torch.randn(8, 4) / 2
    whole = divergence(mean, log_variance)
    parts = [divergence(mean[part], log_variance[part]) for part in (slice(4), slice(4, 8))]
    torch.testing.assert_close(whole, torch.stack(parts).mean())


def test_perceptual_loss_is_of_a_frozen_network() -> None:
    loss = Perceptual(Segmenter(4))
    loss.train()
    assert not any(each.training for each in loss.modules())
    before = {key: each.clone() for key, each in loss.state_dict().items()}
    fake, real = torch.rand(2, 3, 16, 16, requires_grad=True), torch.rand(2, 3, 16, 16)
    assert loss(real, real).item() == 0
    value = loss(fake, real)
    value.backward()
    assert value.item() > 0
    assert fake.grad is not None
    assert not any(each.requires_grad for each in loss.parameters())
    assert all(torch.equal(each, before[key]) for key, each in loss.state_dict().items())
