"""The land: which class each place is, and its color in the light of the hour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from landscapes import palette
from landscapes.render.fields import load_fields, sample, smoothstep
from landscapes.render.light import to_linear
from landscapes.render.terrain import Relief, peak_height, relief_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats
    from landscapes.render.light import Light
    from landscapes.render.scene import Scene

# By biome, as sRGB: grass in wet and dry places, trees in two kinds, stones, rock, road.
_GROUND = {
    "summer": ((96, 130, 52), (150, 150, 74), (40, 74, 34), (64, 96, 40), (150, 138, 120)),
    "autumn": ((138, 128, 60), (170, 142, 78), (140, 84, 28), (166, 116, 36), (146, 130, 112)),
    "winter": ((128, 128, 92), (150, 142, 112), (46, 66, 52), (62, 70, 56), (140, 138, 138)),
    "tropic": ((74, 142, 48), (120, 156, 60), (24, 84, 34), (54, 112, 38), (196, 178, 140)),
    "desert": ((150, 146, 84), (178, 158, 98), (84, 96, 50), (104, 108, 58), (208, 168, 116)),
}
_ROCK = {
    "summer": ((110, 100, 92), (84, 82, 70)),
    "autumn": ((116, 100, 88), (94, 84, 66)),
    "winter": ((104, 102, 106), (84, 86, 88)),
    "tropic": ((96, 92, 76), (62, 82, 52)),
    "desert": ((176, 116, 78), (146, 96, 66)),
}
_SNOW, _ROAD, _SAND = (236, 240, 248), (134, 112, 86), (206, 186, 146)


@cache
def albedos(biome: str) -> dict[str, Floats]:
    """Return the colors of a biome's surfaces in linear light."""
    names = ("lush", "dry", "trees", "other_trees", "stones")
    colors = dict(zip(names, map(to_linear, _GROUND[biome]), strict=True))
    rock, low_rock = map(to_linear, _ROCK[biome])
    return colors | {
        "rock": rock,
        "low_rock": low_rock,
        "snow": to_linear(_SNOW),
        "road": to_linear(_ROAD),
        "sand": to_linear(_SAND),
    }


@dataclass(frozen=True)
class Patches:
    """Fields over the plain, each in 0..1, one value a place."""

    broad: Floats
    fine: Floats


def classify(scene: Scene, x: Floats, z: Floats) -> tuple[NDArray[np.uint8], Relief, Patches]:
    """Return the class of each place (1-D), with the relief and patches that decide it."""
    fields, offsets = load_fields(), scene.offsets
    relief = relief_at(scene, x, z)
    # Patches keep about the same size on the screen: their grain follows the distance.
    grain = 14 / (1 + 0.05 * z)
    across, away = x * grain + offsets[9, 0], np.log(z) * 40 + offsets[9, 1]
    broad = sample(fields.smooth, away, across)
    fine = sample(fields.smooth, away * 4 + offsets[11, 0], across * 4 + offsets[11, 1])
    labels = np.full(z.shape, palette.GRASS, np.uint8)
    mixed = broad + 0.25 * (fine - 0.5)
    if scene.stones:
        labels[mixed < scene.stones] = palette.STONES
    if scene.snow:
        # What the stones leave is covered from the other end.
        labels[mixed > 1 - scene.snow * (1 - 0.5 * scene.stones)] = palette.SNOW
    if scene.mountains:
        share = relief.mountain / peak_height(scene)
        labels[share > 0.05] = palette.MOUNTAINS
        labels[(share > 0.05) & (share + 0.22 * (fine - 0.5) > scene.snow_line)] = palette.SNOW
    if scene.beach:
        labels[np.minimum(relief.lake, 0.7 + 0.3 * relief.river) < 1 + scene.beach * fine] = (
            palette.STONES
        )
    labels[relief.woods > 0.5] = palette.TREES
    labels[relief.river < 1] = palette.RIVER
    labels[relief.lake < 1] = palette.WATER
    labels[(relief.road < 1) & (relief.lake >= 1) & (relief.mountain < 2)] = palette.ROAD
    return labels, relief, Patches(broad, fine)


@dataclass(frozen=True)
class Places:
    """Places of one class, one value each: their position, height, and the patches there."""

    x: Floats
    z: Floats
    height: Floats
    broad: Floats
    fine: Floats


def color_land(scene: Scene, light: Light, labels: NDArray[np.uint8], places: Places) -> Floats:
    """Return the color of dry land in full light (linear, one row of 3 a place)."""
    result = np.zeros((*labels.shape, 3), np.float32)
    painters = {
        palette.GRASS: _grass,
        palette.STONES: _stones,
        palette.TREES: _woods,
        palette.MOUNTAINS: _rock,
        palette.SNOW: _snow,
        palette.ROAD: _road,
    }
    values = (places.x, places.z, places.height, places.broad, places.fine)
    for label, painter in painters.items():
        chosen = np.flatnonzero(labels == label)
        if len(chosen):
            result[chosen] = painter(scene, light, Places(*(each[chosen] for each in values)))
    return np.maximum(result, 0)


def _between(low: Floats, high: Floats, share: Floats) -> Floats:
    mixed: Floats = low + share[..., None] * (high - low)
    return mixed


def _texture(field: Floats, scene: Scene, at: Places, scale: float) -> Floats:
    """Return a texture of the ground, ``scale`` cells to the height of the eye, lost far away."""
    offset = scene.offsets[12]
    seen = sample(field, at.z * scale + offset[0], at.x * scale + offset[1])
    return seen / (1 + 0.0035 * scale * at.z)


def _bumps(field: Floats, scene: Scene, light: Light, at: Places, scale: float) -> Floats:
    """Return how a relief of ``field`` brightens slopes to the light and darkens those away."""
    offset, step = scene.offsets[15], 2.5
    rows, columns = at.z * scale + offset[0], at.x * scale + offset[1]
    toward = light.toward[2] * step - 0.6, light.toward[0] * step
    here = sample(field, rows, columns)
    bumps: Floats = (here - sample(field, rows + toward[0], columns + toward[1])) * 1.6
    return bumps / (1 + 0.0035 * scale * at.z)


def _grass(scene: Scene, light: Light, at: Places) -> Floats:
    colors, fields = albedos(scene.biome), load_fields()
    blades = _texture(fields.grass, scene, at, 15) + 0.7 * _texture(fields.grass, scene, at, 47)
    lush = smoothstep(0.15, 0.85, at.broad + 0.5 * (at.fine - 0.5))
    bright = 1 + 0.3 * blades + 0.3 * (at.fine - 0.5)
    return _between(colors["dry"], colors["lush"], lush) * bright[..., None]


def _stones(scene: Scene, light: Light, at: Places) -> Floats:
    colors, fields = albedos(scene.biome), load_fields()
    boulders = _bumps(fields.cells, scene, light, at, 22)
    gravel = _texture(fields.gravel, scene, at, 26)
    sandy = smoothstep(0.35, 0.75, at.fine) * 0.5
    bright = (1 + 0.22 * gravel + boulders * (1 - sandy)) * (0.85 + 0.3 * at.broad)
    return _between(colors["stones"], colors["sand"], sandy) * bright[..., None]


def _woods(scene: Scene, light: Light, at: Places) -> Floats:
    colors, fields, offset = albedos(scene.biome), load_fields(), scene.offsets[13]
    rows = at.z * 7 + at.height * 9 + offset[0]
    crowns = sample(fields.cells, rows, at.x * 7 + offset[1])
    leaves = sample(fields.smooth, rows * 5, at.x * 31)
    kinds = smoothstep(0.3, 0.7, sample(fields.smooth, rows * 0.9, at.x * 4 + offset[0]))
    bright = 0.3 + 0.9 * crowns + 0.5 * (leaves - 0.5)
    colored: Floats = _between(colors["trees"], colors["other_trees"], kinds) * bright[..., None]
    if scene.snow > 0.5:
        capped = 0.8 * smoothstep(0.55, 0.8, crowns + 0.3 * (leaves - 0.5))
        colored = _between(colored, colors["snow"], capped)
    return colored


def _rock(scene: Scene, light: Light, at: Places) -> Floats:
    colors, fields = albedos(scene.biome), load_fields()
    rows, columns = at.height * 3 + at.z, at.x * 2 + 30 * at.fine
    rough = sample(fields.ridged, rows * 1.7, columns * 1.7)
    low = 1 - smoothstep(0.1, 0.5, at.height / peak_height(scene) + 0.3 * (at.fine - 0.5))
    return _between(colors["rock"], colors["low_rock"], low) * (0.5 + 0.7 * rough)[..., None]


def _snow(scene: Scene, light: Light, at: Places) -> Floats:
    drifts = 0.9 + 0.12 * at.fine + 0.03 * _texture(load_fields().grass, scene, at, 15)
    snow: Floats = albedos(scene.biome)["snow"] * drifts[..., None]
    return snow


def _road(scene: Scene, light: Light, at: Places) -> Floats:
    bright = 1 + 0.2 * _texture(load_fields().gravel, scene, at, 26) + 0.25 * (at.fine - 0.5)
    road: Floats = albedos(scene.biome)["road"] * bright[..., None]
    return road


def shine_on(light: Light, color: Floats, lit: Floats) -> Floats:
    """Return ``color`` in the light: shade everywhere, and sun where the slope is turned to it."""
    direct = 1.25 * np.maximum(lit, 0)[..., None]
    result: Floats = color * (light.shade + direct * light.sun)
    return result
