"""Light by hour: colors of sky, sun and shade, in linear light, interpolated over the day."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from landscapes.render.fields import Floats
    from landscapes.render.scene import Scene

SUNRISE, SUNSET = 6.0, 19.0
# Hour; zenith, horizon, sun or moon, shade (all sRGB, 0..255); exposure.
_DAY = (
    (0.0, (8, 13, 34), (22, 32, 62), (96, 116, 160), (38, 48, 82), 0.85),
    (4.3, (14, 22, 52), (48, 52, 88), (92, 108, 150), (44, 54, 88), 0.85),
    (5.4, (44, 66, 122), (214, 138, 132), (150, 110, 120), (86, 86, 122), 0.95),
    (6.4, (84, 120, 178), (250, 180, 140), (255, 168, 110), (116, 116, 148), 1.0),
    (8.0, (84, 142, 212), (206, 214, 218), (255, 224, 176), (134, 150, 176), 1.0),
    (12.5, (60, 124, 214), (186, 214, 236), (255, 248, 230), (140, 160, 190), 1.05),
    (16.5, (72, 132, 206), (212, 214, 206), (255, 232, 184), (138, 150, 172), 1.0),
    (18.2, (72, 100, 168), (255, 178, 92), (255, 160, 72), (122, 108, 128), 1.0),
    (19.3, (50, 54, 112), (232, 96, 62), (214, 92, 60), (92, 76, 112), 0.95),
    (20.4, (22, 28, 68), (104, 66, 92), (100, 96, 136), (56, 58, 96), 0.9),
    (21.6, (10, 16, 40), (30, 38, 70), (96, 116, 160), (40, 50, 84), 0.85),
    (24.0, (8, 13, 34), (22, 32, 62), (96, 116, 160), (38, 48, 82), 0.85),
)


def to_linear(color: tuple[float, float, float] | Floats) -> Floats:
    """Return an sRGB color in 0..255 as linear light in 0..1."""
    linear: Floats = (np.asarray(color, np.float32) / np.float32(255)) ** np.float32(2.2)
    return linear


@dataclass(frozen=True)
class Light:
    """Colors (linear, 3 values each) and direction of the light of a scene.

    ``toward`` is the unit vector to the sun or moon (right, up, away), ``bearing`` and ``rise`` are
    its place in the sky as tangents, ``day`` is 1 by day and 0 by night, ``ahead`` is whether it
    can be seen.
    """

    zenith: Floats
    horizon: Floats
    sun: Floats
    shade: Floats
    exposure: float
    toward: Floats
    bearing: float
    rise: float
    day: float
    ahead: bool


@cache
def _tables() -> tuple[Floats, Floats]:
    hours = np.array([row[0] for row in _DAY], np.float32)
    colors = [
        np.concatenate([*(to_linear(color) for color in row[1:5]), np.array([row[5]], np.float32)])
        for row in _DAY
    ]
    return hours, np.array(colors, np.float32)


def light_of(scene: Scene) -> Light:
    """Return the light of the scene's hour, grayed by its clouds."""
    hours, colors = _tables()
    mixed = np.array([np.interp(scene.hour, hours, column) for column in colors.T], np.float32)
    zenith, horizon, sun, shade = mixed[:3], mixed[3:6], mixed[6:9], mixed[9:12]
    gray = scene.cloud**2
    mean = np.float32(0.6 * horizon.mean() + 0.4 * zenith.mean())
    is_day = SUNRISE - 0.4 < scene.hour < SUNSET + 0.4
    rise = _elevation(scene.hour)
    bearing = math.radians(scene.azimuth)
    toward = np.array(
        [math.sin(bearing) * math.cos(rise), math.sin(rise), math.cos(bearing) * math.cos(rise)],
        np.float32,
    )
    return Light(
        zenith=zenith + (mean * 0.8 - zenith) * np.float32(0.75 * gray),
        horizon=horizon + (mean * 1.05 - horizon) * np.float32(0.6 * gray),
        sun=sun * np.float32(1 - 0.8 * gray),
        shade=shade + (shade.mean() * 1.1 - shade) * np.float32(0.6 * gray),
        exposure=float(mixed[12]),
        toward=toward,
        bearing=math.tan(bearing) if abs(scene.azimuth) < 80 else math.inf,
        rise=math.tan(rise),
        day=float(np.interp(scene.hour, [4.8, 6.2, 18.8, 20.4], [0, 1, 1, 0])),
        ahead=abs(scene.azimuth) < 80 and (is_day or True),
    )


def _elevation(hour: float) -> float:
    """Return the height of the sun, by night of the moon, over the horizon in radians."""
    if SUNRISE - 0.4 < hour < SUNSET + 0.4:
        share = (hour - SUNRISE) / (SUNSET - SUNRISE)
        return max(math.radians(58) * math.sin(math.pi * min(max(share, 0), 1)), 0.03)
    since = (hour - SUNSET) % 24 / (24 - SUNSET + SUNRISE)
    return math.radians(8 + 34 * math.sin(math.pi * since))
