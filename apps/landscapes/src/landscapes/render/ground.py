"""The land: which class each place is, and its color in the light of the hour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from landscapes import palette
from landscapes.render.fields import load_fields, sample, smoothstep
from landscapes.render.light import to_linear
from landscapes.render.terrain import Relief, relief_at

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
    forest: Floats
    fine: Floats


def classify(scene: Scene, x: Floats, z: Floats) -> tuple[NDArray[np.uint8], Relief, Patches]:
    """Return the class of each place of the land (any shape), with what it was decided by."""
    fields, offsets = load_fields(), scene.offsets
    relief = relief_at(scene, x, z)
    # Patches keep about the same size on the screen: their grain follows the distance.
    grain = 14 / (1 + 0.05 * z)
    across, away = x * grain + offsets[9, 0], np.log(z) * 40 + offsets[9, 1]
    broad = sample(fields.smooth, away, across)
    forest = sample(fields.smooth, np.log(z) * 30 + offsets[10, 0], x / z * 60 + offsets[10, 1])
    fine = sample(fields.smooth, away * 4 + offsets[11, 0], across * 4 + offsets[11, 1])
    labels = np.full(z.shape, palette.GRASS, np.uint8)
    mixed = broad + 0.25 * (fine - 0.5)
    labels[mixed < scene.stones] = palette.STONES
    if scene.snow:
        # What the stones leave is covered from the other end.
        labels[mixed > 1 - scene.snow * (1 - 0.5 * scene.stones)] = palette.SNOW
    woods = forest + 0.2 * (fine - 0.5) + 0.25 * smoothstep(12, 40, z) - 0.12
    labels[(woods > 1 - scene.forest) & (z > 9)] = palette.TREES
    _classify_mountains(scene, relief, fine, forest, labels)
    _classify_shores(scene, relief, fine, labels)
    labels[relief.river > 0.5] = palette.RIVER
    labels[relief.lake > 0.5] = palette.WATER
    labels[(relief.road > 0.5) & (relief.lake <= 0.5) & (relief.mountain < 2)] = palette.ROAD
    return labels, relief, Patches(broad, forest, fine)


def _classify_mountains(
    scene: Scene, relief: Relief, fine: Floats, forest: Floats, labels: NDArray[np.uint8]
) -> None:
    if not scene.mountains:
        return
    top = scene.mountains * scene.mountains_at * 2.0
    share = relief.mountain / top
    high = share > 0.05 + 0.12 * scene.forest * forest
    labels[high] = palette.MOUNTAINS
    labels[high & (share + 0.22 * (fine - 0.5) > scene.snow_line)] = palette.SNOW


def _classify_shores(scene: Scene, relief: Relief, fine: Floats, labels: NDArray[np.uint8]) -> None:
    wet = np.maximum(relief.lake, relief.river)
    if scene.beach:
        labels[(wet > 0.02) & (fine > 0.25)] = palette.STONES


def color_land(
    scene: Scene, labels: NDArray[np.uint8], patches: Patches, x: Floats, z: Floats
) -> Floats:
    """Return the color of dry land in full light (linear, one row of 3 a place)."""
    fields, offsets = load_fields(), scene.offsets
    colors = albedos(scene.biome)
    near = 1 / (1 + 0.04 * z)
    rows, columns = z * 9 + offsets[12, 0], x * 9 + offsets[12, 1]
    grass = sample(fields.grass, rows * 2, columns * 2) * near
    gravel = sample(fields.gravel, rows, columns) * near
    boulders = sample(fields.cells, rows * 1.2, columns * 1.2)
    tops = sample(fields.cells, np.log(z) * 150 + offsets[13, 0], x / z * 190 + offsets[13, 1])
    rock = sample(fields.ridged, rows * 0.22, columns * 0.22 + 40 * patches.fine)
    lush = smoothstep(0.2, 0.8, patches.broad + 0.4 * (patches.fine - 0.5))[..., None]
    kinds = smoothstep(0.35, 0.65, patches.fine)[..., None]
    painted = {
        palette.GRASS: (colors["dry"] + lush * (colors["lush"] - colors["dry"]))
        * (1 + 0.28 * grass + 0.3 * (patches.fine - 0.5))[..., None],
        palette.STONES: colors["stones"]
        * ((1 + 0.25 * gravel) * (0.45 + 0.75 * smoothstep(0.05, 0.6, boulders)))[..., None],
        palette.TREES: (colors["trees"] + kinds * (colors["other_trees"] - colors["trees"]))
        * (0.35 + 1.0 * tops)[..., None],
        palette.MOUNTAINS: (colors["low_rock"] + kinds * (colors["rock"] - colors["low_rock"]))
        * (0.55 + 0.6 * rock)[..., None],
        palette.SNOW: colors["snow"] * (0.92 + 0.10 * patches.fine + 0.03 * grass)[..., None],
        palette.ROAD: colors["road"] * (1 + 0.18 * gravel)[..., None],
    }
    result = np.zeros((*labels.shape, 3), np.float32)
    for label, color in painted.items():
        chosen = labels == label
        result[chosen] = color[chosen]
    return np.maximum(result, 0)


def shine_on(light: Light, color: Floats, lit: Floats, rough: Floats) -> Floats:
    """Return ``color`` in the light: shade everywhere, and sun where the slope is turned to it."""
    direct = np.maximum(lit, 0) * rough
    result: Floats = color * (light.shade + 1.25 * direct[..., None] * light.sun)
    return result
