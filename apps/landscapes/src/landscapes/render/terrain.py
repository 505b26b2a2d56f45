"""The land of a scene as heights over a plane, and the view of it from over the origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from landscapes.render.fields import load_fields, sample, smoothstep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats
    from landscapes.render.scene import Curve, Scene

# Distances on a screen of height 1, from an eye at height 1; tangent of the bearing at each edge.
FOCUS = 0.9
EDGE = 0.5 / FOCUS
# What is not there is so far away.
FAR = 99.0


@dataclass(frozen=True)
class Relief:
    """The land, all of one shape.

    ``ground`` is the height with all that grows there, ``mountain`` the part of mountains in it.
    ``lake``, ``river`` and ``road`` are below 1 inside, 1 at the edge, and grow away from it.
    ``woods`` is 1 under trees that grow close together.
    """

    ground: Floats
    mountain: Floats
    lake: Floats
    river: Floats
    road: Floats
    woods: Floats


def _along(curve: Curve | None, x: Floats, z: Floats) -> Floats:
    """Return the distance from a curve in halves of its width; far where there is none."""
    if curve is None:
        return np.full_like(z, FAR)
    # Lines never get thinner than 1/90 of the picture's width.
    half = 0.5 * np.maximum(curve.width, 0.012 * z)
    off = np.abs(x - curve.place(z)) / half
    return np.where(z < curve.end, off, FAR).astype(np.float32)


def relief_at(scene: Scene, x: Floats, z: Floats) -> Relief:
    """Return the land at ``x`` to the side and ``z`` away, both in heights of the eye."""
    fields, offsets = load_fields(), scene.offsets
    lake = _lake_at(scene, x / z, z)
    river, road = _along(scene.river, x, z), _along(scene.road, x, z)
    waves = sample(fields.smooth, x * 1.1 + offsets[0, 0], z * 1.1 + offsets[0, 1])
    hills = scene.hills * waves * smoothstep(6, 60, z)
    bumps = 0.07 * sample(fields.smooth, x * 9 + offsets[1, 0], z * 9 + offsets[1, 1])
    # Banks rise slowly from the water; a road is level.
    dry = smoothstep(0.95, 1.5, lake) * smoothstep(0.9, 4.0, river)
    mountain = _mountain_at(scene, x, z) * smoothstep(0.95, 1.05, lake)
    level = 1 - 0.6 * (1 - smoothstep(0.8, 3.0, road))
    woods = _woods_at(scene, x, z, mountain)
    woods *= smoothstep(1.0, 1.03, lake) * smoothstep(1.0, 1.3, np.minimum(river, road))
    ground = (hills + bumps + 0.03) * dry * level + mountain
    if scene.forest:
        crowns = sample(fields.cells, x * 7 + offsets[13, 0], z * 7 + offsets[13, 1])
        ground = ground + scene.tree_height * woods * (0.55 + 0.5 * crowns)
    return Relief(ground, mountain, lake, river, road, woods)


def _lake_at(scene: Scene, bearing: Floats, z: Floats) -> Floats:
    lake = np.full_like(z, FAR)
    if not scene.lakes:
        return lake
    fields, offset = load_fields(), scene.offsets[2]
    depth = np.log(z)
    shore = sample(fields.smooth, bearing * 45 + offset[0], depth * 22 + offset[1])
    for each in scene.lakes:
        away = ((bearing - each.bearing) / each.wide) ** 2
        away = away + ((depth - each.distance) / each.deep) ** 2
        lake = np.minimum(lake, away + 0.9 * (shore - 0.5))
    return lake


def _woods_at(scene: Scene, x: Floats, z: Floats, mountain: Floats) -> Floats:
    if not scene.forest:
        return np.zeros_like(z)
    fields, offset = load_fields(), scene.offsets[10]
    dense = sample(fields.smooth, np.log(z) * 30 + offset[0], x / z * 60 + offset[1])
    dense = dense + 0.25 * smoothstep(12, 40, z) - 0.12
    edge = 1 - scene.forest
    below = 1 - smoothstep(0.05, 0.06 + 0.1 * scene.forest, mountain / peak_height(scene))
    return smoothstep(edge, edge + 0.03, dense) * smoothstep(7, 10, z) * below


def peak_height(scene: Scene) -> float:
    """Return the height of the highest mountains, in heights of the eye."""
    return max(scene.mountains / FOCUS * scene.mountains_at * 2.0, 1e-6)


def _mountain_at(scene: Scene, x: Floats, z: Floats) -> Floats:
    height = np.zeros_like(z)
    begin = scene.mountains_at
    far = z > begin * 0.8
    if scene.mountains and far.any():
        height[far] = _peaks_at(scene, x[far], z[far])
    return height


def _peaks_at(scene: Scene, x: Floats, z: Floats) -> Floats:
    fields, offsets, begin = load_fields(), scene.offsets, scene.mountains_at
    cosine, sine = np.cos(scene.turn) * 0.45, np.sin(scene.turn) * 0.45
    across, away = x * cosine - z * sine + offsets[3, 0], x * sine + z * cosine + offsets[3, 1]
    peaks = sample(fields.elevation, across, away)
    rough = sample(fields.ridged, across * 2.3 + offsets[4, 0], away * 2.3)
    mass = sample(fields.smooth, x / z * 36 + offsets[5, 0], np.full_like(z, offsets[5, 1]))
    rise = smoothstep(begin * 0.8, begin * 1.9, z) * (0.35 + 0.65 * smoothstep(0.1, 0.7, mass))
    return np.maximum(peak_height(scene) * rise * (peaks**1.2 + 0.10 * rough - 0.08), 0)


@dataclass(frozen=True)
class View:
    """The place that is seen in each pixel of a picture: arrays of ``side`` x ``side``.

    ``land`` is False in the sky; the other fields hold ``x`` and ``z`` (infinite in the sky) of
    the place, and ``lit``, the cosine of its slope to the light.
    """

    land: NDArray[np.bool_]
    x: Floats
    z: Floats
    lit: Floats


def _distances(horizon: float, side: int) -> Floats:
    near = FOCUS / (1 - horizon) * 0.75
    # Small pictures show fewer steps.
    steps = min(max(side / 256, 0.3), 2.0) ** 0.7
    parts = [
        np.geomspace(near, 25, int(80 * steps), endpoint=False),
        np.geomspace(25, 55, int(40 * steps), endpoint=False),
        np.linspace(55, 210, int(85 * steps), endpoint=False),
        np.geomspace(210, 520, int(30 * steps)),
    ]
    return np.concatenate(parts).astype(np.float32)


def look(scene: Scene, side: int, toward: Floats) -> View:
    """Return the view from over the origin, with light from the unit vector ``toward``."""
    distances = _distances(scene.horizon, side)[:, None]
    bearings = ((np.arange(side, dtype=np.float32) + 0.5) / side - 0.5)[None, :] / FOCUS
    x, z = bearings * distances, np.broadcast_to(distances, (len(distances), side))
    ground = relief_at(scene, x, z).ground
    lit = _light_slopes(ground, bearings, distances, toward)
    rises = FOCUS * (ground - 1) / z
    rows = (scene.horizon - (np.arange(side, dtype=np.float32) + 0.5) / side)[::-1]
    horizons = np.maximum.accumulate(rises, axis=0)
    steps = np.stack([np.searchsorted(column, rows) for column in horizons.T], 1)[::-1]
    land = steps < len(distances)
    after = np.minimum(steps, len(distances) - 1)
    before = np.maximum(after - 1, 0)
    columns = np.arange(side)[None, :]
    low, high = rises[before, columns], rises[after, columns]
    share = np.clip((rows[::-1, None] - low) / np.maximum(high - low, 1e-6), 0, 1)
    log_z = np.log(distances[:, 0])
    seen = np.exp(log_z[before] + share * (log_z[after] - log_z[before]))
    shade = lit[before, columns] + share * (lit[after, columns] - lit[before, columns])
    seen = np.where(land, seen, np.float32(np.inf)).astype(np.float32)
    return View(land, np.where(land, bearings * seen, 0), seen, shade)


def _light_slopes(ground: Floats, bearings: Floats, distances: Floats, toward: Floats) -> Floats:
    step = bearings[0, 1] - bearings[0, 0]
    across = np.gradient(ground, axis=1) / (step * distances)
    along = np.gradient(ground, distances[:, 0], axis=0) - across * bearings
    length = np.sqrt(1 + across**2 + along**2)
    lit: Floats = (toward[1] - across * toward[0] - along * toward[2]) / length
    return lit
