"""The sizes that networks come in."""

from __future__ import annotations

from dataclasses import dataclass

from landscapes.errors import LandscapesError


@dataclass(frozen=True)
class Preset:
    """The widths of all networks for pictures of ``size`` x ``size`` pixels.

    Attributes:
        name: of the preset.
        size: pixels of a side.
        start: pixels of a side where the generator begins: ``size`` / 2 to some power.
        width: channels of the last block; earlier ones have 2, 4, 8, 16 times as many.
        cap: the most channels of a block, as a multiple of ``width``.
        hidden: channels between labels and scale and shift in a SPADE layer.
        z_dim: numbers of a style.
        discriminator: channels of the first layer of a discriminator.
        encoder: channels of the first layer of the style encoder.
        gain: of the initial weights; 0.02 is the paper's.
        rates: learning rates of generator with encoder, and of the discriminator.
    """

    name: str
    size: int
    start: int
    width: int
    cap: int
    hidden: int
    z_dim: int
    discriminator: int
    encoder: int
    gain: float = 0.02
    rates: tuple[float, float] = (1e-4, 4e-4)


# Small networks see thousands of pictures, not millions: they begin with larger weights and rates.
_QUICK = {"gain": 0.7, "rates": (1e-3, 1e-3)}
PRESETS = {
    each.name: each
    for each in (
        Preset("smoke32", 32, 4, 8, 4, 16, 16, 8, 8, **_QUICK),  # type: ignore[arg-type]
        Preset("tiny64", 64, 4, 12, 8, 24, 64, 16, 12, **_QUICK),  # type: ignore[arg-type]
        Preset("base128", 128, 4, 32, 8, 64, 256, 32, 32, 0.1, (2e-4, 4e-4)),
        Preset("lite256", 256, 8, 24, 8, 48, 256, 32, 32, 0.1, (2e-4, 4e-4)),
        Preset("paper256", 256, 8, 64, 16, 128, 256, 64, 64),
    )
}


def preset_named(name: str) -> Preset:
    """Return the preset of that name. Raise LandscapesError that lists the names."""
    if name not in PRESETS:
        raise LandscapesError(f"There is no preset {name!r}: name one of {', '.join(PRESETS)}.")
    return PRESETS[name]
