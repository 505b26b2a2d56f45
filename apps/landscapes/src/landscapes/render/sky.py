"""The sky: gradient of the hour, sun or moon, stars and clouds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscapes.render.fields import load_fields, sample, smoothstep
from landscapes.render.terrain import FOCUS

if TYPE_CHECKING:
    from landscapes.render.fields import Floats
    from landscapes.render.light import Light
    from landscapes.render.scene import Scene


def paint_sky(scene: Scene, light: Light, side: int) -> Floats:
    """Return the whole picture as sky, in linear light: float32, side x side x 3."""
    centers = (np.arange(side, dtype=np.float32) + 0.5) / side
    bearing = ((centers - 0.5) / FOCUS)[None, :]
    rise = np.maximum((scene.horizon - centers) / FOCUS, 0)[:, None]
    mix = (1 - np.exp(-3.2 * rise))[..., None]
    sky = light.horizon + mix * (light.zenith - light.horizon)
    sky = np.broadcast_to(sky, (side, side, 3)).copy()
    if light.day < 0.4 and scene.cloud < 0.85:
        sky += _stars(scene, bearing, rise) * (0.4 - light.day) * (1 - scene.cloud)
    glow = _distance_to_light(light, bearing, rise)
    sky += _shine(light, scene, glow)[..., None] * light.sun
    cover, thick = _clouds(scene, bearing, rise)
    silver = np.exp(-3.0 * glow)[..., None] * (1 - 0.5 * thick[..., None])
    bright = light.shade * 0.75 + light.horizon * 0.25 + light.sun * (0.5 - 0.38 * thick[..., None])
    bright = bright + light.sun * silver * 0.5
    sky += cover[..., None] * (bright - sky)
    painted: Floats = sky
    return painted


def _distance_to_light(light: Light, bearing: Floats, rise: Floats) -> Floats:
    if not light.ahead:
        return np.full((rise.shape[0], bearing.shape[1]), 9, np.float32)
    away: Floats = np.hypot(bearing - light.bearing, rise - light.rise)
    return away


def _shine(light: Light, scene: Scene, glow: Floats) -> Floats:
    disc = 1 - smoothstep(0.030, 0.038, glow)
    strength = 0.25 + 0.75 * light.day
    halo = 0.75 * np.exp(-9 * glow) + 0.35 * np.exp(-2.2 * glow)
    clear = 1 - 0.75 * scene.cloud
    shine: Floats = (6 * disc * strength**0.5 + halo * strength) * clear
    return shine


def _stars(scene: Scene, bearing: Floats, rise: Floats) -> Floats:
    offset = scene.offsets[6]
    rows, columns = np.floor(rise * 150 + offset[0]), np.floor(bearing * 150 + offset[1])
    white = load_fields().white[rows.astype(int) % 256, columns.astype(int) % 256]
    bright = np.clip(white - 2.3, 0, 1) * smoothstep(0.02, 0.25, rise)
    stars: Floats = bright[..., None] * np.float32(1.2)
    return stars


def _clouds(scene: Scene, bearing: Floats, rise: Floats) -> tuple[Floats, Floats]:
    """Return how far clouds cover each pixel, and how thick they are, both in 0..1."""
    fields, offsets = load_fields(), scene.offsets
    depth = 1 / (rise + 0.12)
    across, away = np.broadcast_arrays(bearing * depth * 11, depth * 13)
    puffs = sample(fields.smooth, away + offsets[7, 0], across + offsets[7, 1])
    wisps = sample(fields.smooth, away * 3.1 + offsets[8, 0], across * 2.6 + offsets[8, 1])
    puffs = puffs + 0.25 * (wisps - 0.5)
    edge = 1.05 - 1.05 * scene.cloud
    cover = smoothstep(edge, edge + 0.28, puffs) * smoothstep(0.0, 0.05, rise)
    thick = smoothstep(edge + 0.05, edge + 0.7, puffs)
    return cover * 0.92, thick
