"""The land of a scene as heights over a plane, and what a viewer over the origin sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from landscapes.render.fields import load_fields, sample, smoothstep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats
    from landscapes.render.scene import Scene

# Distances on a screen of height 1, from an eye at height 1; tangent of the bearing at each edge.
FOCUS = 0.9
EDGE = 0.5 / FOCUS


@dataclass(frozen=True)
class Relief:
    """Heights, all of one shape: of the ``ground`` and the part of it that is ``mountain``.

    ``lake`` and ``river`` are 1 in the water and fall to 0 on its shore, ``road`` likewise.
    """

    ground: Floats
    mountain: Floats
    lake: Floats
    river: Floats
    road: Floats


def _along(curve_place: Floats, x: Floats, width: float, z: Floats, end: float) -> Floats:
    off = np.abs(x - curve_place)
    # Half of the width is full; lines never get thinner than 1/250 of the picture's width.
    half = 0.5 * np.maximum(width, 0.012 * z)
    return (1 - smoothstep(0.7, 1.3, off / half)) * (z < end)


def relief_at(scene: Scene, x: Floats, z: Floats) -> Relief:
    """Return the land at ``x`` to the side and ``z`` away, both in heights of the eye."""
    fields, offsets = load_fields(), scene.offsets
    bearing = x / z
    lake = _lake_at(scene, bearing, z)
    river = road = np.zeros_like(z)
    if scene.river:
        river = _along(scene.river.place(z), x, scene.river.width, z, scene.river.end)
    if scene.road:
        road = _along(scene.road.place(z), x, scene.road.width, z, scene.road.end)
    waves = sample(fields.smooth, x * 1.1 + offsets[0, 0], z * 1.1 + offsets[0, 1])
    hills = scene.hills * waves * smoothstep(6, 60, z)
    bumps = 0.06 * sample(fields.smooth, x * 9 + offsets[1, 0], z * 9 + offsets[1, 1])
    mountain = _mountain_at(scene, x, z, bearing)
    dry = (1 - lake) * (1 - 0.9 * np.maximum(river, road * 0.7))
    plain = (hills + bumps + 0.05) * dry
    return Relief(plain + mountain * (1 - lake), mountain * (1 - lake), lake, river, road)


def _lake_at(scene: Scene, bearing: Floats, z: Floats) -> Floats:
    if not scene.lakes:
        return np.zeros_like(z)
    fields, offset = load_fields(), scene.offsets[2]
    depth = np.log(z)
    shore = sample(fields.smooth, bearing * 45 + offset[0], depth * 22 + offset[1])
    lake = np.zeros_like(z)
    for each in scene.lakes:
        away = ((bearing - each.bearing) / each.wide) ** 2
        away = away + ((depth - each.distance) / each.deep) ** 2
        lake = np.maximum(lake, 1 - smoothstep(0.92, 1.08, away + 0.9 * (shore - 0.5)))
    return lake


def _mountain_at(scene: Scene, x: Floats, z: Floats, bearing: Floats) -> Floats:
    if not scene.mountains:
        return np.zeros_like(z)
    fields, offsets = load_fields(), scene.offsets
    begin = scene.mountains_at
    cosine, sine = np.cos(scene.turn) * 0.45, np.sin(scene.turn) * 0.45
    across, away = x * cosine - z * sine + offsets[3, 0], x * sine + z * cosine + offsets[3, 1]
    peaks = sample(fields.elevation, across, away)
    rough = sample(fields.ridged, across * 2.3 + offsets[4, 0], away * 2.3)
    mass = sample(fields.smooth, bearing * 36 + offsets[5, 0], np.full_like(z, offsets[5, 1]))
    height = scene.mountains / FOCUS * begin * 2.0
    rise = smoothstep(begin * 0.8, begin * 1.9, z) * (0.35 + 0.65 * smoothstep(0.1, 0.7, mass))
    return np.maximum(height * rise * (peaks**1.2 + 0.10 * rough - 0.08), 0)


@dataclass(frozen=True)
class View:
    """What is seen in each pixel of a picture of ``side`` x ``side``: arrays of that shape.

    ``land`` is False in the sky; the other fields hold ``x`` and ``z`` (infinite in the sky) of
    the place, and ``lit``, the cosine of its slope to the light.
    """

    land: NDArray[np.bool_]
    x: Floats
    z: Floats
    lit: Floats


def _distances(horizon: float) -> Floats:
    near = FOCUS / (1 - horizon) * 0.75
    parts = [
        np.geomspace(near, 25, 80, endpoint=False),
        np.geomspace(25, 55, 40, endpoint=False),
        np.linspace(55, 210, 80, endpoint=False),
        np.geomspace(210, 520, 30),
    ]
    return np.concatenate(parts).astype(np.float32)


def look(scene: Scene, side: int, toward: Floats) -> View:
    """Return what the viewer sees, with light that comes from the unit vector ``toward``."""
    distances = _distances(scene.horizon)[:, None]
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
