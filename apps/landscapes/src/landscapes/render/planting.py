"""Plants single trees on the land of a scene and draws them into the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from landscapes import palette
from landscapes.render.ground import albedos
from landscapes.render.light import to_linear
from landscapes.render.terrain import EDGE, FOCUS, relief_at
from landscapes.render.trees import TALL, WIDE, sprites

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats
    from landscapes.render.light import Light
    from landscapes.render.scene import Scene

# By biome: kinds of trees, the commoner ones more often.
_KINDS = {
    "summer": ("broadleaf", "broadleaf", "conifer"),
    "autumn": ("broadleaf", "broadleaf", "conifer"),
    "winter": ("conifer", "conifer", "bare"),
    "tropic": ("palm", "palm", "broadleaf", "shrub"),
    "desert": ("shrub", "shrub", "shrub", "palm"),
}
_SIZES = {"conifer": 1.25, "broadleaf": 1.0, "palm": 1.2, "shrub": 0.4, "bare": 1.0}
_NEEDLES = to_linear((44, 70, 46))
_WOOD = np.array([0.06, 0.04, 0.03], np.float32)
_GROWS_ON = (palette.GRASS, palette.STONES, palette.SNOW, palette.TREES)


@dataclass(frozen=True)
class Tree:
    """A tree in the picture: rows and columns of its box, distance, outline and color."""

    top: float
    foot: float
    middle: float
    z: float
    kind: str
    variant: int
    mirrored: bool
    tint: Floats


@dataclass
class Canvas:
    """The arrays to paint on, all of side x side: picture (linear), labels and distances."""

    color: Floats
    labels: NDArray[np.uint8]
    z: Floats


def plant(scene: Scene, side: int) -> list[Tree]:
    """Return the trees of the scene from far to near, in rows and columns of the picture."""
    if not scene.trees:
        return []
    draw = np.random.Generator(np.random.PCG64(scene.grain))
    count = scene.trees
    groves = draw.uniform(-EDGE, EDGE, 5)
    bearing = groves[draw.integers(0, 5, count)] + draw.normal(0, 0.09, count)
    z = np.exp(draw.uniform(np.log(4.5), np.log(45), count))
    alone = draw.uniform(size=count) < 0.35
    bearing = np.where(alone, draw.uniform(-EDGE, EDGE, count), bearing)
    x, z = (bearing * z).astype(np.float32), z.astype(np.float32)
    ground = relief_at(scene, x, z).ground
    kinds = _KINDS[scene.biome]
    colors = albedos(scene.biome)
    trees = []
    for place in np.argsort(-z):
        kind = kinds[int(draw.integers(len(kinds)))]
        variant, mirrored = int(draw.integers(6)), bool(draw.integers(2))
        height = scene.tree_height * _SIZES[kind] * draw.uniform(0.65, 1.25)
        mix, tone = draw.uniform(), draw.uniform(0.75, 1.3)
        if kind == "conifer":
            tint = _NEEDLES
        else:
            tint = colors["trees"] + np.float32(mix) * (colors["other_trees"] - colors["trees"])
        scale = FOCUS / z[place]
        foot = scene.horizon - (ground[place] - 1) * scale
        top = scene.horizon - (ground[place] + height - 1) * scale
        middle = 0.5 + bearing[place] * FOCUS
        tint = (tint * tone).astype(np.float32)
        trees.append(
            Tree(top * side, foot * side, middle * side, z[place], kind, variant, mirrored, tint)
        )
    return trees


def draw_trees(scene: Scene, light: Light, canvas: Canvas, trees: list[Tree]) -> None:
    """Draw ``trees`` into ``canvas``, each with its shadow, where dry plain is under their foot."""
    side = len(canvas.z)
    for tree in trees:
        row, column = int(tree.foot), int(tree.middle)
        if not (0 <= row < side and 0 <= column < side and tree.foot - tree.top >= 2.5):
            continue
        if canvas.labels[row, column] in _GROWS_ON and canvas.z[row, column] > tree.z * 0.85:
            _drop_shadow(light, canvas, tree)
            _draw_tree(scene, light, canvas, tree)


def _draw_tree(scene: Scene, light: Light, canvas: Canvas, tree: Tree) -> None:
    side = len(canvas.z)
    tall = tree.foot - tree.top
    half = tall * WIDE / TALL / 2
    rows = np.arange(max(int(tree.top), 0), min(int(tree.foot) + 1, side))
    columns = np.arange(max(int(tree.middle - half), 0), min(int(tree.middle + half) + 1, side))
    if not len(rows) or not len(columns):
        return
    across = (columns + 0.5 - (tree.middle - half)) / (2 * half)
    if tree.mirrored:
        across = 1 - across
    down = (rows + 0.5 - tree.top) / tall
    box = np.ix_(
        np.clip((down * TALL).astype(int), 0, TALL - 1),
        np.clip((across * WIDE).astype(int), 0, WIDE - 1),
    )
    sprite = sprites(tree.kind)[tree.variant]
    part = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    solid = (sprite.solid[box] > 0) & (canvas.z[part] > tree.z * 0.98)
    if not solid.any():
        return
    turned = -1.0 if tree.mirrored else 1.0
    outward = sprite.side[box][solid] * turned
    bright = sprite.bright[box][solid][:, None]
    wood = sprite.trunk[box][solid][:, None]
    albedo = tree.tint + wood * (_WOOD - tree.tint)
    if scene.biome == "winter" and scene.snow > 0.5:
        capped = np.clip((bright - 0.72) * 4, 0, 0.85)
        albedo = albedo + capped * (albedos("winter")["snow"] - albedo)
    direct = np.clip(0.35 + 0.65 * outward * light.toward[0] - 0.35 * light.toward[2], 0.05, 1)
    lit = light.shade * bright + 1.25 * light.sun * (direct[:, None] * bright)
    canvas.color[part][solid] = albedo * lit
    canvas.labels[part][solid] = palette.TREES
    canvas.z[part][solid] = tree.z


def _drop_shadow(light: Light, canvas: Canvas, tree: Tree) -> None:
    """Darken an ellipse of the ground next to the foot, away from the light."""
    side = len(canvas.z)
    tall = tree.foot - tree.top
    wide, flat = 0.34 * tall, max(0.07 * tall, 1.0)
    middle = tree.middle - light.toward[0] * 0.25 * tall
    foot = tree.foot - light.toward[2] * 0.05 * tall * -1
    rows = np.arange(max(int(foot - flat), 0), min(int(foot + flat) + 1, side))
    columns = np.arange(max(int(middle - wide), 0), min(int(middle + wide) + 1, side))
    if not len(rows) or not len(columns):
        return
    part = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    away = ((rows[:, None] - foot) / flat) ** 2 + ((columns[None, :] - middle) / wide) ** 2
    dark = np.clip(1 - away, 0, 1) * np.float32(0.55 * (0.4 + 0.6 * light.day))
    near = np.abs(canvas.z[part] / tree.z - 1) < 0.3
    canvas.color[part] *= np.where(near, 1 - dark, 1)[..., None].astype(np.float32)
