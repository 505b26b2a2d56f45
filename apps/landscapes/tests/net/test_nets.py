"""SPADE against loops, sizes against the published ones, and what a generator does with maps."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from landscapes.nets import (
    PRESETS,
    Discriminator,
    Generator,
    StyleEncoder,
    encode_labels,
    preset_named,
)
from landscapes.nets.spade import Spade, SpadeBlock
from landscapes.nets.start import initialize, plain_weights


def count(module: torch.nn.Module) -> float:
    """Return millions of parameters."""
    return sum(each.numel() for each in module.parameters()) / 1e6


@pytest.mark.parametrize(
    ("preset", "published"),
    [("smoke32", 0.26), ("tiny64", 1.41), ("base128", 10.15), ("lite256", 8.30)],
)
def test_generators_have_the_sizes_of_their_presets(preset: str, published: float) -> None:
    assert count(Generator(preset_named(preset), 10)) == pytest.approx(published, abs=0.006)


def test_the_largest_preset_has_the_published_sizes() -> None:
    paper = preset_named("paper256")
    with torch.device("meta"):
        assert count(Generator(paper, 10, spectral=False)) == pytest.approx(109.0, abs=0.05)
        for labels, published in ((151, 96.5), (184, 97.5)):
            generator = Generator(paper, labels, styled=False, spectral=False)
            assert count(generator) == pytest.approx(published, abs=0.05)
        assert count(Discriminator(paper, 10, spectral=False)) == pytest.approx(5.55, abs=0.05)
        assert count(StyleEncoder(paper, spectral=False)) == pytest.approx(10.5, abs=0.05)


def test_a_spade_layer_equals_a_loop_over_pixels() -> None:
    layer = Spade(3, labels=2, hidden=4, synced=False).double()
    initialize(layer, 1.0, 0)
    for each in (layer.modulation.shared, layer.modulation.scale, layer.modulation.shift):
        torch.nn.init.normal_(each.bias)
    features = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    labels = torch.rand(2, 2, 4, 5, dtype=torch.float64)
    expected = torch.empty_like(features)
    for n in range(2):
        hidden = convolve(labels[n], layer.modulation.shared).clamp(min=0)
        scale = convolve(hidden, layer.modulation.scale)
        shift = convolve(hidden, layer.modulation.shift)
        for c in range(3):
            values = features[:, c]
            mean = values.sum() / values.numel()
            variance = ((values - mean) ** 2).sum() / values.numel()
            normalized = (features[n, c] - mean) / (variance + 1e-5) ** 0.5
            expected[n, c] = normalized * (1 + scale[c]) + shift[c]
    torch.testing.assert_close(layer(features, labels), expected)


def convolve(planes: torch.Tensor, layer: torch.nn.Conv2d) -> torch.Tensor:
    """Return a 3 x 3 convolution with zeros around it, by loops."""
    channels, height, width = planes.shape
    out = torch.zeros(layer.out_channels, height, width, dtype=planes.dtype)
    for o in range(layer.out_channels):
        for y in range(height):
            for x in range(width):
                total = layer.bias[o].clone()
                for c in range(channels):
                    for dy in (-1, 0, 1):
                        for dx in (-1, 0, 1):
                            if 0 <= y + dy < height and 0 <= x + dx < width:
                                weight = layer.weight[o, c, dy + 1, dx + 1]
                                total = total + weight * planes[c, y + dy, x + dx]
                out[o, y, x] = total
    return out


def test_a_block_with_a_learned_shortcut_is_the_sum_of_its_paths() -> None:
    block = SpadeBlock(4, 2, 3, 8, synced=False, spectral=False).double()
    initialize(block, 1.0, 0)
    features = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    labels = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    # Each path with a normalization of its own, as published; the block does it once for both.
    leaky = torch.nn.LeakyReLU(0.2)
    norm = torch.nn.BatchNorm2d(4, affine=False).double()
    inner = block.conv_0(leaky(block.spade_0(features, labels)))
    inner = block.conv_1(leaky(block.spade_1(inner, labels)))
    shortcut = block.conv_s(block.modulation_s(norm(features), labels))
    torch.testing.assert_close(block(features, labels), shortcut + inner)


def test_flat_maps_of_different_classes_give_different_pictures() -> None:
    generator = Generator(preset_named("smoke32"), synced=False)
    initialize(generator, 0.7, 0)
    style = torch.randn(1, 16).expand(2, -1)
    maps = torch.stack([torch.full((32, 32), 0), torch.full((32, 32), 3)])
    pictures = generator(encode_labels(maps), style)
    assert (pictures[0] - pictures[1]).abs().mean() > 0.01


def test_a_change_of_the_map_changes_the_picture_mostly_there() -> None:
    generator = Generator(preset_named("smoke32"), synced=False).eval()
    initialize(generator, 0.7, 0)
    before = torch.zeros(1, 32, 32, dtype=torch.uint8)
    after = before.clone()
    after[:, 20:28, 20:28] = 6
    style = torch.randn(1, 16)
    pictures = [generator(encode_labels(each), style) for each in (before, after)]
    apart = (pictures[0] - pictures[1]).abs().mean(1)[0]
    assert apart[20:28, 20:28].mean() > 2 * apart[:8, :8].mean()


def test_unknown_pixels_are_of_no_class() -> None:
    planes = encode_labels(torch.tensor([[[0, 8], [255, 3]]]))
    assert planes.shape == (1, 9, 2, 2)
    assert planes.sum(1).tolist() == [[[1, 1], [0, 1]]]


@pytest.mark.parametrize("preset", ["smoke32", "tiny64", "base128"])
def test_networks_fit_together(preset: str) -> None:
    sizes = preset_named(preset)
    pictures = torch.rand(2, 3, sizes.size, sizes.size) * 2 - 1
    labels = encode_labels(torch.randint(0, 9, (2, sizes.size, sizes.size)))
    mean, log_variance = StyleEncoder(sizes)(pictures)
    assert mean.shape == log_variance.shape == (2, sizes.z_dim)
    painted = Generator(sizes, synced=False)(labels, mean)
    assert painted.shape == pictures.shape
    assert painted.abs().max() <= 1
    fake, real = Discriminator(sizes)(labels, painted, pictures)
    assert [len(each) for each in fake] == [len(each) for each in real] == [5, 5]


def test_batches_that_are_judged_together_are_judged_as_if_alone() -> None:
    judge = Discriminator(preset_named("smoke32")).eval()
    labels, one, other = (
        encode_labels(torch.zeros(1, 32, 32, dtype=torch.uint8)),
        torch.rand(1, 3, 32, 32),
        torch.rand(1, 3, 32, 32),
    )
    together = judge(labels, one, other)
    for found, pictures in zip(together, (one, other), strict=True):
        (alone,) = judge(labels, pictures)
        torch.testing.assert_close(found[0][-1], alone[0][-1])
        torch.testing.assert_close(found[1][-1], alone[1][-1])


def test_plain_weights_paint_what_the_network_with_spectral_normalization_paints() -> None:
    sizes = preset_named("smoke32")
    network = Generator(sizes, synced=False)
    initialize(network, 0.7, 0)
    plain = Generator(sizes, synced=False, spectral=False)
    missing = plain.load_state_dict(dict(plain_weights(network)), strict=False)
    assert all(".norm." in each for each in missing.missing_keys)
    assert not missing.unexpected_keys
    inputs = encode_labels(torch.randint(0, 9, (2, 32, 32))), torch.randn(2, 16)
    network.eval()
    plain.eval()
    torch.testing.assert_close(network(*inputs), plain(*inputs))


def test_the_first_weights_follow_from_the_seed_alone() -> None:
    found = []
    for seed in (1, 1, 2):
        torch.rand(seed)  # which other code may draw
        network = Generator(preset_named("smoke32"), synced=False)
        initialize(network, 0.7, seed)
        found.append(torch.cat([each.flatten() for each in network.state_dict().values()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_presets_are_named_by_their_keys() -> None:
    assert all(name == preset.name for name, preset in PRESETS.items())
    assert dataclasses.replace(PRESETS["tiny64"], name="x").size == 64
