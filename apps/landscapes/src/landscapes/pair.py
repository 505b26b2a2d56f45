"""A picture and its label map: the unit that renderer, data sets and training share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The renderer's version: a change of what it renders changes this name, and those of data sets.
RENDERER = "landscapes-v2"
# Half of its pairs have real skies.
RENDERER_WITH_SKIES = f"{RENDERER}-skies"
BIOMES = ("summer", "autumn", "winter", "tropic", "desert")
# Names of hours that people ask for, and the hour of the day that each means.
HOURS = {"dawn": 6.0, "morning": 9.0, "noon": 13.0, "dusk": 19.0, "night": 23.0}


@dataclass(frozen=True)
class Meta:
    """What is known of a pair.

    ``source`` is the renderer's version or the path of a photo. A photo has neither ``seed`` nor
    ``biome`` (one of ``BIOMES``) nor ``hour`` (real value in [0, 24)), ``azimuth`` (of the sun or
    the moon, in degrees to the right of the view), ``horizon`` (share of the height from the top),
    ``haze`` or ``cloud`` (each in [0, 1]): all of these are then None.
    """

    source: str
    index: int
    seed: int | None = None
    biome: str | None = None
    hour: float | None = None
    azimuth: float | None = None
    horizon: float | None = None
    haze: float | None = None
    cloud: float | None = None


@dataclass(frozen=True)
class Pair:
    """A picture ``image`` (uint8, H x W x 3, RGB) with ``labels`` (uint8, H x W) of the same size.

    Labels are ids of ``landscapes.palette.CLASSES``, or 255 where the class is unknown.
    """

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    meta: Meta
