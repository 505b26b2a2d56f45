"""Real skies: panoramas, brought to the light of a scene's hour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from landscapes.render.terrain import FOCUS

if TYPE_CHECKING:
    from landscapes.render.fields import Floats
    from landscapes.render.light import Light
    from landscapes.render.scene import Scene

CIRCLE = 512  # columns of a whole panorama; others are parts
DEGREES_A_PIXEL = 360 / CIRCLE
SHARE = 0.5  # of the scenes of a data set with real skies


@dataclass(frozen=True)
class Taken:
    """When a panorama was taken: ``hour``, ``cloud`` in 0..1, and the column of the sun, if any."""

    hour: float
    cloud: float
    sun: int | None


PANORAMAS = {
    "dawn": Taken(5.6, 0.2, 300),
    "sunrise": Taken(7.6, 0.1, None),
    "sky": Taken(12.5, 0.5, None),
    "park": Taken(16.0, 0.1, 172),
    "sunset": Taken(18.0, 0.1, None),
    "venice": Taken(19.6, 0.6, None),
    "night": Taken(23.5, 0.1, None),
}


@cache
def load_skies() -> dict[str, Floats]:
    """Return the panoramas in linear light, from their lowest row up: float32, h x w x 3."""
    with (
        resources.files(__package__).joinpath("skies.npz").open("rb") as stream,
        np.load(stream) as stored,
    ):
        exposed = {name: stored[name].astype(np.float32) / 255 for name in PANORAMAS}
    return {name: -np.log(1 - each ** np.float32(2.2)) for name, each in exposed.items()}


def has_real_sky(scene: Scene) -> bool:
    """Return whether ``scene`` is one of those that get a real sky: the same at any size."""
    return bool(_draw(scene).uniform() < SHARE)


def panorama_for(scene: Scene) -> str:
    """Return the name of the panorama whose hour and clouds are nearest to the scene's."""

    def apart(taken: Taken) -> float:
        hours = abs(taken.hour - scene.hour)
        return min(hours, 24 - hours) / 3 + abs(taken.cloud - scene.cloud)

    return min(PANORAMAS, key=lambda name: apart(PANORAMAS[name]))


def lay_real_sky(scene: Scene, light: Light, side: int) -> Floats:
    """Return the whole picture as real sky, in linear light: float32, side x side x 3.

    The sun of a panorama is turned to that of the scene. Colors go half of the way to those of the
    hour, and the brightness all of it, so that sky and land fit together.
    """
    name = panorama_for(scene)
    sky, sun = load_skies()[name], PANORAMAS[name].sun
    centers = (np.arange(side, dtype=np.float32) + 0.5) / side
    bearing = ((centers - 0.5) / FOCUS)[None, :]
    rise = np.maximum((scene.horizon - centers) / FOCUS, 0)[:, None]
    height = np.degrees(np.arctan(rise / np.hypot(1, bearing))) / DEGREES_A_PIXEL
    aside = np.degrees(np.arctan(bearing)) / DEGREES_A_PIXEL + 0 * rise
    across = _column_ahead(scene, sun, sky.shape[1], aside.max()) + aside
    places = np.stack([np.minimum(height, len(sky) - 1), across])
    mode = "grid-wrap" if sky.shape[1] == CIRCLE else "mirror"
    planes = [
        ndimage.map_coordinates(sky[..., each], places, np.float32, order=1, mode=mode)
        for each in range(3)
    ]
    wanted, found = 0.6 * light.horizon + 0.4 * light.zenith, sky.mean((0, 1))
    tint = np.sqrt(wanted / found * wanted.mean() / found.mean())
    laid: Floats = np.stack(planes, -1) * tint.astype(np.float32)
    return laid


def _column_ahead(scene: Scene, sun: int | None, width: int, half: float) -> float:
    """Return the column that is straight ahead: not closer than ``half`` to a side, if possible."""
    share = scene.offsets[7, 0] / 256
    column = share * width if sun is None else sun - scene.azimuth / DEGREES_A_PIXEL
    if width == CIRCLE:
        return float(column)
    return float(np.clip(column, half, width - 1 - half)) if width > 2 * half else width / 2


def _draw(scene: Scene) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([scene.grain, 2]))
