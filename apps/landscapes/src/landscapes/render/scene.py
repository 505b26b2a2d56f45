"""Draws a scene: all that is random about a pair, the same at any size of the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from landscapes.pair import BIOMES

if TYPE_CHECKING:
    from landscapes.render.fields import Floats

GOLDEN = (math.sqrt(5) - 1) / 2
# Hours are drawn evenly over these shares of the pairs: (share up to here, hour).
HOUR_SHARES = ((0.0, 0.0), (0.12, 4.8), (0.30, 7.2), (0.62, 16.5), (0.88, 19.8), (1.0, 24.0))


@dataclass(frozen=True)
class Curve:
    """A road or river over the plain: x as a function of distance.

    ``start`` is its place next to the viewer (in heights of the eye), ``slope`` where it goes
    (tangent of the bearing), ``swing`` and ``turns`` its bends, ``phase`` where they begin,
    ``width`` in heights of the eye, ``end`` the distance at which it is lost.
    """

    start: float
    slope: float
    swing: float
    turns: float
    phase: float
    width: float
    end: float

    def place(self, distance: Floats) -> Floats:
        """Return the sideways position of the middle at ``distance``."""
        bends = np.sin(self.turns * np.log(distance) + self.phase)
        x: Floats = self.start + self.slope * distance + self.swing * distance**0.8 * bends
        return x


@dataclass(frozen=True)
class Lake:
    """A lake: center and radii in bearing (tangent) and in the logarithm of the distance."""

    bearing: float
    distance: float
    wide: float
    deep: float


@dataclass(frozen=True)
class Scene:
    """The contents of one picture.

    ``biome``, ``hour``, ``azimuth``, ``horizon``, ``haze`` and ``cloud`` are those of
    ``landscapes.pair.Meta``. ``mountains`` is the height of the peaks as a share of the picture, 0
    without, and begins at ``mountains_at`` heights of the eye; ``snow_line`` is a share of their
    height. ``hills`` is the height of the plain's waves. ``forest``, ``stones`` and ``snow`` are
    shares of the plain. ``trees`` is the number of single trees, of ``tree_height`` heights of the
    eye. ``offsets`` (16 x 2) shifts the fields, ``turn`` rotates the elevation, and ``grain`` seeds
    what is drawn by the piece.
    """

    biome: str
    hour: float
    azimuth: float
    horizon: float
    haze: float
    cloud: float
    mountains: float
    mountains_at: float
    snow_line: float
    hills: float
    forest: float
    stones: float
    snow: float
    beach: float
    trees: int
    tree_height: float
    lakes: tuple[Lake, ...]
    river: Curve | None
    road: Curve | None
    offsets: Floats
    turn: float
    grain: int


def _hour_of_share(share: float) -> float:
    shares, hours = zip(*HOUR_SHARES, strict=True)
    return float(np.interp(share, shares, hours)) % 24


def _draw_curve(draw: np.random.Generator, width: float) -> Curve:
    return Curve(
        start=draw.uniform(-1.6, 1.6),
        slope=draw.uniform(-0.3, 0.3),
        swing=draw.uniform(0.15, 0.5),
        turns=draw.uniform(1.5, 3.6),
        phase=draw.uniform(0, 2 * math.pi),
        width=width,
        end=draw.uniform(25, 70),
    )


def _draw_lakes(draw: np.random.Generator) -> tuple[Lake, ...]:
    def one() -> Lake:
        return Lake(
            bearing=draw.uniform(-0.4, 0.4),
            distance=draw.uniform(math.log(4), math.log(25)),
            wide=draw.uniform(0.3, 1.1),
            deep=draw.uniform(0.5, 1.3),
        )

    return tuple(one() for _ in range(int(draw.integers(1, 3))))


def draw_scene(seed: int, index: int, attempt: int) -> Scene:
    """Return the scene of pair ``index``; ``attempt`` counts those that were not acceptable.

    Biomes take turns, and the hours of each biome spread evenly over any range of indices; no
    attempt changes either. All else follows from ``SeedSequence([seed, index])``.
    """
    group, turn = divmod(index, len(BIOMES))
    order = np.random.Generator(np.random.PCG64([seed, group])).permutation(len(BIOMES))
    biome = int(order[turn])
    shift = np.random.Generator(np.random.PCG64(seed)).uniform()
    hour = _hour_of_share((shift + group * GOLDEN + biome / len(BIOMES)) % 1.0)
    streams = np.random.SeedSequence([seed, index]).spawn(attempt + 1)
    draw = np.random.Generator(np.random.PCG64(streams[attempt]))
    return _draw_rest(draw, BIOMES[biome], hour)


# By biome: probabilities of forest, stones and snow on the plain, and most single trees.
_PLAIN = {
    "summer": (0.7, 0.35, 0.0, 70),
    "autumn": (0.7, 0.35, 0.0, 70),
    "winter": (0.6, 0.25, 1.0, 70),
    "tropic": (0.7, 0.3, 0.0, 60),
    "desert": (0.1, 1.0, 0.0, 25),
}


def _draw_rest(draw: np.random.Generator, biome: str, hour: float) -> Scene:
    forest, stones, snow, most_trees = _PLAIN[biome]
    has_mountains = draw.uniform() < 0.7
    snow_line = draw.uniform(0.3, 0.8) if draw.uniform() < 0.6 else 2.0
    if biome == "winter":
        snow_line = draw.uniform(0.05, 0.5)
    elif biome == "desert":
        snow_line = 2.0
    dry = 0.5 if biome == "desert" else 1.0
    return Scene(
        biome=biome,
        hour=hour,
        # Often in the picture, which shows 29 degrees to either side.
        azimuth=draw.uniform(-26, 26) if draw.uniform() < 0.4 else draw.uniform(-180, 180),
        horizon=draw.uniform(0.34, 0.58),
        haze=draw.beta(1.3, 2.5),
        cloud=float(np.clip(draw.beta(0.9, 1.3), 0, 1)),
        mountains=draw.uniform(0.14, 0.42) if has_mountains else 0.0,
        mountains_at=draw.uniform(55, 110),
        snow_line=snow_line,
        hills=draw.uniform(0.1, 1.0) ** 2 * 5,
        forest=draw.uniform(0.35, 0.8) if draw.uniform() < forest else 0.0,
        stones=draw.uniform(0.25, 0.7) if draw.uniform() < stones else 0.0,
        snow=draw.uniform(0.4, 1.0) if snow else 0.0,
        beach=draw.uniform(0.02, 0.12) if draw.uniform() < 0.5 else 0.0,
        trees=int(most_trees * draw.uniform() ** 1.5),
        tree_height=draw.uniform(0.8, 2.4),
        lakes=_draw_lakes(draw) if draw.uniform() < 0.42 * dry else (),
        river=_draw_curve(draw, draw.uniform(0.5, 1.3)) if draw.uniform() < 0.42 else None,
        road=_draw_curve(draw, draw.uniform(0.3, 0.7)) if draw.uniform() < 0.42 else None,
        offsets=draw.uniform(0, 256, (16, 2)).astype(np.float32),
        turn=draw.uniform(0, 2 * math.pi),
        grain=int(draw.integers(2**31)),
    )
