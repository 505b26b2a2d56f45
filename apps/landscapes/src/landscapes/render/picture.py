"""Renders pairs: scene, land, trees, water, air, and the rules by which a scene is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscapes import palette
from landscapes.pair import RENDERER, RENDERER_WITH_SKIES, Meta, Pair
from landscapes.render.ground import Places, classify, color_land, shine_on
from landscapes.render.light import light_of
from landscapes.render.planting import Canvas, draw_trees, plant
from landscapes.render.real_sky import has_real_sky, lay_real_sky
from landscapes.render.scene import draw_scene
from landscapes.render.sky import paint_sky
from landscapes.render.terrain import look
from landscapes.render.water import pour_water

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats
    from landscapes.render.light import Light
    from landscapes.render.scene import Scene

ATTEMPTS = 8
DRAFT = 48
FEWEST_CLASSES, LARGEST_SHARE = 3, 0.75
# What a class must cover to count as present.
PRESENT = 0.004


def render_pair(seed: int, index: int, size: int, *, skies: bool = False) -> Pair:
    """Return pair ``index`` of ``seed``: a picture of ``size`` x ``size`` pixels and its labels.

    The pair depends on the arguments alone, and shows the same scene at any size. ``size`` is at
    least 16. With ``skies`` half of the pairs have a real sky; labels and land stay the same.
    """
    scene = accepted_scene(seed, index)
    image, labels = paint_scene(scene, size, skies=skies)
    source = RENDERER_WITH_SKIES if skies else RENDERER
    return Pair(image, labels, meta_of(scene, source, seed, index))


def meta_of(scene: Scene, source: str, seed: int, index: int) -> Meta:
    """Return the Meta of the pair that shows ``scene``."""
    return Meta(
        source=source,
        index=index,
        seed=seed,
        biome=scene.biome,
        hour=scene.hour,
        azimuth=scene.azimuth,
        horizon=scene.horizon,
        haze=scene.haze,
        cloud=scene.cloud,
    )


def accepted_scene(seed: int, index: int) -> Scene:
    """Return the first scene that is acceptable, or the last of ``ATTEMPTS``."""
    for attempt in range(ATTEMPTS):
        scene = draw_scene(seed, index, attempt)
        if is_acceptable(scene, draft_labels(scene)):
            break
    return scene


def draft_labels(scene: Scene) -> NDArray[np.uint8]:
    """Return the labels of ``scene`` without single trees, small."""
    view = look(scene, DRAFT, np.array([0, 1, 0], np.float32))
    labels = np.full((DRAFT, DRAFT), palette.SKY, np.uint8)
    labels[view.land] = classify(scene, view.x[view.land], view.z[view.land])[0]
    return labels


def is_acceptable(scene: Scene, labels: NDArray[np.uint8]) -> bool:
    """Return whether a scene is worth a pair.

    At least 3 classes are present, none covers more than three quarters, and lakes, river, road and
    mountains that the scene has can be seen.
    """
    shares = np.bincount(labels.ravel(), minlength=len(palette.CLASSES)) / labels.size
    promised = {
        palette.WATER: bool(scene.lakes),
        palette.RIVER: scene.river is not None,
        palette.ROAD: scene.road is not None,
        palette.STONES: scene.stones > 0,
    }
    kept = all(shares[label] >= 2 * PRESENT for label, drawn in promised.items() if drawn)
    enough = (shares >= PRESENT).sum() >= FEWEST_CLASSES
    return bool(kept and enough and shares.max() <= LARGEST_SHARE)


def paint_scene(
    scene: Scene, size: int, *, skies: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return picture and labels of ``scene``, painted at twice the size and reduced.

    With ``skies`` half of all scenes have a real sky.
    """
    light = light_of(scene)
    side = 2 * size
    view = look(scene, side, light.toward)
    land = view.land
    has_photo = skies and has_real_sky(scene)
    color = (lay_real_sky if has_photo else paint_sky)(scene, light, side)
    labels = np.full((side, side), palette.SKY, np.uint8)
    x, z = view.x[land], view.z[land]
    labels[land], relief, patches = classify(scene, x, z)
    places = Places(x, z, relief.ground, patches.broad, patches.fine)
    albedo = color_land(scene, light, labels[land], places)
    color[land] = shine_on(light, albedo, view.lit[land])
    canvas = Canvas(color, labels, view.z)
    draw_trees(scene, light, canvas, plant(scene, side))
    _add_air(scene, light, canvas)
    pour_water(scene, light, canvas, view.x)
    return _develop(scene, light, color, size), np.ascontiguousarray(labels[::2, ::2])


def _add_air(scene: Scene, light: Light, canvas: Canvas) -> None:
    """Mix the color of the horizon into distant land."""
    seen = np.isfinite(canvas.z)
    thick = (0.0012 + 0.012 * scene.haze**2) * canvas.z[seen]
    air = (1 - np.exp(-thick))[:, None] * np.float32(0.92)
    haze = light.horizon * 0.8 + light.shade * 0.15
    canvas.color[seen] += air * (haze - canvas.color[seen])


def _develop(scene: Scene, light: Light, color: Floats, size: int) -> NDArray[np.uint8]:
    """Return the picture as uint8 sRGB of ``size``: exposed, reduced, with a trace of noise."""
    small = color.reshape(size, 2, size, 2, 3).mean((1, 3))
    bright = 1 - np.exp(-1.55 * light.exposure * np.maximum(small, 0))
    picture = bright ** np.float32(1 / 2.2)
    grain = np.random.Generator(np.random.PCG64(scene.grain + 1))
    picture += grain.standard_normal(picture.shape, np.float32) * np.float32(0.008)
    rounded: NDArray[np.uint8] = (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
    return rounded
