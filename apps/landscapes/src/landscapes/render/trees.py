"""Single trees: outlines made once, drawn from far to near where the land does not hide them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.render.fields import Floats

TALL, WIDE = 96, 64
VARIANTS = 6


@dataclass(frozen=True)
class Sprite:
    """A tree from its top (row 0) to its foot: arrays of TALL x WIDE.

    ``solid`` is 1 on the tree; ``side`` is the outward direction of the surface, -1 left to 1
    right; ``bright`` the share of sky light; ``trunk`` is 1 on wood.
    """

    solid: Floats
    side: Floats
    bright: Floats
    trunk: Floats


@cache
def _grid() -> tuple[Floats, Floats]:
    rows = (np.arange(TALL, dtype=np.float32) + 0.5) / TALL
    columns = ((np.arange(WIDE, dtype=np.float32) + 0.5) / WIDE - 0.5) * (WIDE / TALL) * 2
    return rows[:, None], columns[None, :]


def _roughness(draw: np.random.Generator, grain: float) -> Floats:
    noise = ndimage.gaussian_filter(draw.standard_normal((TALL, WIDE)), grain)
    rough: Floats = (noise / noise.std()).astype(np.float32)
    return rough


def _trunk(rows: Floats, columns: Floats, top: float, width: float) -> Floats:
    return ((np.abs(columns) < width) & (rows > top)).astype(np.float32)


def _stamp(mask: NDArray[np.bool_], middle: tuple[float, float], half: float) -> None:
    """Set ``mask`` in a disc around ``middle`` (row and column of the grid)."""
    rows, columns = _grid()
    top, bottom = np.searchsorted(rows[:, 0], (middle[0] - half, middle[0] + half))
    left, right = np.searchsorted(columns[0], (middle[1] - half, middle[1] + half))
    away = np.hypot(rows[top:bottom] - middle[0], columns[:, left:right] - middle[1])
    mask[top:bottom, left:right] |= away < half


def _conifer(draw: np.random.Generator) -> Sprite:
    rows, columns = _grid()
    layers = draw.uniform(6, 10)
    teeth = 0.72 + 0.28 * ((rows * layers) % 1.0)
    width = draw.uniform(0.3, 0.42) * np.clip(rows / 0.92, 0, 1) ** 0.9 * teeth
    rough = _roughness(draw, 1.2)
    crown = (np.abs(columns) < width * (1 + 0.25 * rough)) & (rows < 0.93)
    trunk = _trunk(rows, columns, 0.9, 0.03)
    side = np.clip(columns / np.maximum(width, 0.02), -1, 1)
    bright = np.clip(0.55 + 0.4 * ((rows * layers) % 1.0) + 0.16 * rough - 0.15 * rows, 0.1, 1.2)
    return _assemble(crown, trunk, side, bright)


def _broadleaf(draw: np.random.Generator, crown_from: float, crown_to: float) -> Sprite:
    rows, columns = _grid()
    middle, tall = (crown_from + crown_to) / 2, (crown_to - crown_from) / 2
    crown = np.zeros((TALL, WIDE), bool)
    side = np.zeros((TALL, WIDE), np.float32)
    bright = np.zeros((TALL, WIDE), np.float32)
    rough = _roughness(draw, 1.5)
    for _ in range(14):
        angle, reach = draw.uniform(0, 2 * np.pi), draw.uniform(0, 0.75) ** 0.6
        row = middle + 0.8 * tall * reach * np.sin(angle)
        column = 0.36 * reach * np.cos(angle)
        radius = draw.uniform(0.12, 0.2)
        away = np.hypot((rows - row) * 1.1, columns - column) / (radius * (1 + 0.18 * rough))
        inside = away < 1
        crown |= inside
        side = np.where(inside, (columns - column) / radius, side)
        bright = np.where(inside, 0.62 - 0.42 * (rows - row) / radius, bright)
    side = 0.5 * np.clip(side, -1, 1) + 0.5 * np.clip(columns / 0.4, -1, 1)
    bright = np.clip(bright + 0.14 * rough - 0.35 * (rows - middle), 0.1, 1.2)
    return _assemble(crown, _trunk(rows, columns, middle, 0.035), side, bright)


def _palm(draw: np.random.Generator) -> Sprite:
    rows, columns = _grid()
    lean = draw.uniform(-0.18, 0.18)
    trunk = (np.abs(columns - lean * (1 - rows) ** 2) < 0.022) & (rows > 0.22)
    crown = np.zeros((TALL, WIDE), bool)
    along = np.linspace(0, 1, 40)
    for angle in np.linspace(0.05, 2 * np.pi, 11) + draw.uniform(0, 0.3, 11):
        reach = draw.uniform(0.3, 0.44)
        column = lean * 0.6 + reach * np.cos(angle) * along
        row = 0.22 - 0.16 * np.sin(angle) * along + 0.22 * along**2
        thick = 0.035 * (1 - 0.7 * along)
        for place, height, half in zip(column, row, thick, strict=True):
            _stamp(crown, (height, place), half)
    rough = _roughness(draw, 1.0)
    side = np.clip(columns / 0.4, -1, 1) * np.ones_like(rows)
    bright = np.clip(0.75 + 0.25 * rough - 0.5 * (rows - 0.2), 0.15, 1.2)
    return _assemble(crown, trunk.astype(np.float32), side, bright)


def _bare(draw: np.random.Generator) -> Sprite:
    rows, columns = _grid()
    wood = np.zeros((TALL, WIDE), bool)
    branches = [(1.0, 0.0, -np.pi / 2, 0.36, 0.034)]
    while branches:
        row, column, angle, length, half = branches.pop()
        for part in np.linspace(0, 1, 14):
            there = (row + part * length * np.sin(angle), column + part * length * np.cos(angle))
            _stamp(wood, there, half * (1 - 0.4 * part))
        if length > 0.07:
            for low, high in ((-0.75, -0.3), (-0.1, 0.1), (0.3, 0.75)):
                turned, shorter = angle + draw.uniform(low, high), draw.uniform(0.6, 0.75)
                branches.append((*there, turned, length * shorter, half * 0.62))
    side = np.clip(columns / 0.4, -1, 1) * np.ones_like(rows)
    bright = np.full((TALL, WIDE), 0.8, np.float32)
    return _assemble(np.zeros_like(wood), wood.astype(np.float32), side, bright)


def _assemble(crown: Floats, trunk: Floats, side: Floats, bright: Floats) -> Sprite:
    solid = np.maximum(crown, trunk)
    wood = trunk * (1 - np.asarray(crown, np.float32))
    return Sprite(*(np.asarray(each, np.float32) for each in (solid, side, bright, wood)))


@cache
def sprites(kind: str) -> tuple[Sprite, ...]:
    """Return the variants of ``kind``: conifer, broadleaf, shrub, palm or bare."""
    draw = np.random.Generator(np.random.PCG64(sum(kind.encode())))
    makers = {
        "conifer": lambda: _conifer(draw),
        "broadleaf": lambda: _broadleaf(draw, 0.0, 0.78),
        "shrub": lambda: _broadleaf(draw, 0.25, 1.0),
        "palm": lambda: _palm(draw),
        "bare": lambda: _bare(draw),
    }
    return tuple(makers[kind]() for _ in range(VARIANTS))
