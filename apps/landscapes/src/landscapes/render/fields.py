"""Tileable fields that all scenes look up: real elevation and textures, and noise made once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import ndimage, spatial

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.floating[Any]]"

SIDE = 256


@dataclass(frozen=True)
class Fields:
    """Float32 fields that repeat without a seam.

    ``elevation`` is real terrain in [0, 1]; ``grass`` and ``gravel`` are photographed textures of
    mean 0 and deviation 1; ``smooth`` (clouds, hills), ``ridged`` (rock) and ``cells`` (boulders,
    tree tops) are in [0, 1], ``smooth`` evenly distributed; ``white`` is normal noise.
    """

    elevation: Floats
    grass: Floats
    gravel: Floats
    smooth: Floats
    ridged: Floats
    cells: Floats
    white: Floats


def _noise_with_spectrum(draw: np.random.Generator, slope: float) -> Floats:
    """Return noise of SIDE x SIDE whose amplitude falls with frequency as ``f ** -slope``."""
    rows = np.fft.fftfreq(SIDE)[:, None]
    columns = np.fft.rfftfreq(SIDE)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(draw.standard_normal((SIDE, SIDE))) * frequency**-slope
    # Waves longer than a third of the field would show that it repeats.
    spectrum[frequency < 2.5 / SIDE] = 0
    noise = np.fft.irfft2(spectrum, s=(SIDE, SIDE))
    scaled: Floats = (noise / noise.std()).astype(np.float32)
    return scaled


def _spread_evenly(field: Floats) -> Floats:
    ranks = np.argsort(np.argsort(field, axis=None))
    return (ranks.reshape(field.shape) / (field.size - 1)).astype(np.float32)


def _grow_cells(draw: np.random.Generator, count: int) -> Floats:
    """Return 1 at the centers of ``count`` cells, falling to 0 where two cells meet."""
    centers = draw.uniform(0, SIDE, (count, 2))
    tree = spatial.cKDTree(centers, boxsize=SIDE)
    places = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1)
    first, second = np.moveaxis(tree.query(places.reshape(-1, 2), k=2)[0], -1, 0)
    inside = 1 - (first / np.maximum(second, 1e-6)).reshape(SIDE, SIDE)
    cells: Floats = np.sqrt(inside).astype(np.float32)
    return cells


def _mirror(field: NDArray[np.uint8]) -> Floats:
    both = np.concatenate([field, field[::-1]])
    return (np.concatenate([both, both[:, ::-1]], 1) / 255).astype(np.float32)


@cache
def load_fields() -> Fields:
    """Return the fields; the first call of a process makes them, in about 0.2 s."""
    draw = np.random.Generator(np.random.PCG64(1))
    with (
        resources.files(__package__).joinpath("fields.npz").open("rb") as stream,
        np.load(stream) as stored,
    ):
        elevation = _mirror(stored["elevation"])
        grass, gravel = (
            ((stored[name].astype(np.float32) - 128) / 40) for name in ("grass", "gravel")
        )
    return Fields(
        elevation=elevation,
        grass=grass,
        gravel=gravel,
        smooth=_spread_evenly(_noise_with_spectrum(draw, 1.7)),
        ridged=1 - np.minimum(np.abs(_noise_with_spectrum(draw, 1.6)), 1),
        cells=_grow_cells(draw, 900),
        white=draw.standard_normal((SIDE, SIDE), np.float32),
    )


def sample(field: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return ``field`` at real-valued positions, in cells, interpolated linearly; it repeats."""
    places = np.stack([rows, columns])
    found: Floats = ndimage.map_coordinates(
        field, places, np.float32, order=1, mode="grid-wrap", prefilter=False
    )
    return found


def smoothstep(low: float, high: float, value: Floats) -> Floats:
    """Return 0 below ``low``, 1 above ``high``, and a smooth rise between."""
    share = np.clip((value - low) / (high - low), 0, 1)
    step: Floats = share * share * (3 - 2 * share)
    return step
