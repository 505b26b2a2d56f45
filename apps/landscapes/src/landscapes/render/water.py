"""Lakes and rivers: the picture above the shore, mirrored and rippled, over the color of depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from landscapes import palette
from landscapes.render.fields import load_fields, sample
from landscapes.render.light import to_linear
from landscapes.render.terrain import FOCUS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats
    from landscapes.render.light import Light
    from landscapes.render.planting import Canvas
    from landscapes.render.scene import Scene

_DEEP = {
    "summer": (26, 66, 92),
    "autumn": (34, 62, 74),
    "winter": (44, 72, 96),
    "tropic": (18, 128, 140),
    "desert": (46, 104, 110),
}


def pour_water(scene: Scene, light: Light, canvas: Canvas, x: Floats) -> None:
    """Paint all water and river pixels of ``canvas``; ``x`` is the place to the side of each."""
    wet = (canvas.labels == palette.WATER) | (canvas.labels == palette.RIVER)
    if not wet.any():
        return
    side = len(wet)
    rows, columns = np.nonzero(wet)
    z = canvas.z[wet]
    shore = _shore_rows(wet, scene.horizon * side)[wet]
    ripple = _ripples(scene, x[wet], z)
    calm = 1 / (1 + 0.15 * z)
    bent = ripple * side * 0.022 * (0.3 + calm)
    aside = np.clip(columns + ripple * side * 0.006, 0, side - 1).astype(int)
    # Trees on the bank are mirrored at the shore. All else is far away, so at the horizon: a flat
    # bank itself is too low to be seen in the water.
    at_shore = np.clip(2 * shore - rows - 1 + bent, 0, side - 1).astype(int)
    at_horizon = np.clip(2 * scene.horizon * side - rows - 1 + bent, 0, side - 1).astype(int)
    on_bank = canvas.labels[at_shore, aside] == palette.TREES
    image = canvas.color[np.where(on_bank, at_shore, at_horizon), aside]
    # A glance along the water mirrors; one down into it sees its color.
    steep = 1 / np.sqrt(1 + (z / FOCUS / 1.4) ** 2)
    mirror = np.clip(0.22 + 0.78 * (1 - steep) ** 2.2, 0, 0.92)[:, None]
    deep = to_linear(_DEEP[scene.biome]) * (light.shade * 1.1 + 0.5 * light.sun)
    glitter = _glitter(light, x[wet], z, ripple)
    canvas.color[wet] = deep + mirror * (image * 0.94 - deep) + glitter[:, None] * light.sun


def _shore_rows(wet: NDArray[np.bool_], horizon: float) -> Floats:
    """Return for each pixel the row where the water that it belongs to begins, smoothed."""
    rows = np.arange(len(wet))[:, None]
    dry = np.where(wet, -1, rows)
    first = np.maximum.accumulate(dry, axis=0) + 1
    shore = np.where(wet, first, 0).astype(np.float32)
    weight = ndimage.uniform_filter1d(wet.astype(np.float32), 9, axis=1)
    smooth = ndimage.uniform_filter1d(shore, 9, axis=1) / np.maximum(weight, 1e-6)
    begins: Floats = np.maximum(np.minimum(smooth, rows), horizon).astype(np.float32)
    return begins


def _ripples(scene: Scene, x: Floats, z: Floats) -> Floats:
    fields, offset = load_fields(), scene.offsets[14]
    depth = np.log(z)
    long = sample(fields.smooth, depth * 160 + offset[0], x / z * 34 + offset[1])
    short = sample(fields.smooth, depth * 420 + offset[1], x / z * 90 + offset[0])
    ripples: Floats = (long - 0.5) + 0.7 * (short - 0.5)
    return ripples


def _glitter(light: Light, x: Floats, z: Floats, ripple: Floats) -> Floats:
    """Return the path of light under a low sun or moon."""
    if not light.ahead:
        return np.zeros_like(z)
    off = np.abs(x / z - light.bearing) / (0.05 + 0.5 / z)
    path = np.exp(-off * off) * np.clip(ripple - 0.12, 0, 1) * 2.2
    low: Floats = (path * np.exp(-0.9 * light.rise)).astype(np.float32)
    return low
