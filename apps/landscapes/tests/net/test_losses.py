"""Values of losses on tensors small enough to compute by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from landscapes.errors import LandscapesError
from landscapes.losses import (
    Perceptual,
    divergence,
    feature_matching,
    hinge_of_discriminator,
    hinge_of_generator,
    load_vgg,
)
from landscapes.losses.vgg import COMPARED, VggPerceptual
from landscapes.nets.segmenter import Segmenter

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.fixture(scope="module")
def vgg_weights() -> dict[str, torch.Tensor]:
    """Random weights with the names and shapes of torchvision's VGG19, and one more."""
    numbers = (0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28)
    widths = (3, 64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512)
    torch.manual_seed(0)
    weights = {"classifier.6.bias": torch.zeros(1000)}
    for number, before, after in zip(numbers, widths, widths[1:], strict=False):
        scale = (2 / (9 * before)) ** 0.5
        weights[f"features.{number}.weight"] = torch.randn(after, before, 3, 3) * scale
        weights[f"features.{number}.bias"] = torch.zeros(after)
    return weights


def test_the_loss_of_vgg_compares_five_depths(
    vgg_weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    torch.save(vgg_weights, tmp_path / "vgg19.pth")
    loss = load_vgg(tmp_path / "vgg19.pth")
    real, fake = torch.rand(1, 3, 16, 16) * 2 - 1, torch.rand(1, 3, 16, 16, requires_grad=True)
    # By hand: the plain layers of torchvision's list, features taken after each named ReLU.
    expected, ours, theirs = 0.0, _taps(loss, fake.detach()), _taps(loss, real)
    for weight, one, other in zip((1 / 32, 1 / 16, 1 / 8, 1 / 4, 1), ours, theirs, strict=True):
        expected += weight * float((one - other).abs().mean())
    value = loss(fake, real)
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert [each.shape[1] for each in ours] == [64, 128, 256, 512, 512]
    assert [each.shape[2] for each in ours] == [16, 8, 4, 2, 1]
    value.backward()
    assert fake.grad is not None
    assert loss(real, real).item() == 0
    assert not any(each.requires_grad for each in loss.parameters())


def _taps(loss: VggPerceptual, pictures: torch.Tensor) -> list[torch.Tensor]:
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    scaled = (pictures / 2 + 0.5 - mean[:, None, None]) / deviation[:, None, None]
    return [loss.features[: number + 1](scaled) for number in COMPARED]


def test_files_without_weights_of_vgg_are_refused(
    vgg_weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with pytest.raises(LandscapesError, match=r"absent\.pth cannot be read \(No such file"):
        load_vgg(tmp_path / "absent.pth")
    for name, content in (("text.pth", b"weights"), ("text.safetensors", b"w"), ("no.pth", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LandscapesError, match=f"{name} holds no weights: give the file of"):
            load_vgg(tmp_path / name)
    wrong = {**vgg_weights, "features.28.weight": torch.zeros(512, 512, 1, 1)}
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(LandscapesError, match=r"a features.28.weight of shape \(512, 512, 1, 1\)"):
        load_vgg(tmp_path / "wrong.safetensors")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(LandscapesError, match=r"list\.pth has no features\.0\.weight, and VGG19"):
        load_vgg(tmp_path / "list.pth")
