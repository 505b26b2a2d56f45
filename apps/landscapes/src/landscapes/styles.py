"""Styles by name: means over rendered pictures of a biome at an hour, and scenes to start from."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from landscapes.pair import BIOMES, HOURS
from landscapes.render import VERSION, render_pair
from landscapes.render.scene import draw_scene
from landscapes.studio import Network, Scene, to_planes

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED = 20_000_003  # of no data set that a command makes by default
CHOSEN_FROM = 4_000  # indices of that seed
PICTURES = 8  # that a style is the mean of
NAMES = tuple(f"{biome}-{hour}" for biome in BIOMES for hour in HOURS)
# Indices of that seed.
SCENES = {"valley": 23, "mountain lake": 34, "road": 29, "winter": 11, "paths": 1, "woods": 9}


def load_styles(network: Network, digest: str, file: Path) -> dict[str, NDArray[np.float32]]:
    """Return the styles of all names, each of shape (z,).

    They are read from ``file`` if it was written for the checkpoint with this ``digest`` and by
    this version of the renderer. If not, they are measured, which takes seconds, and written there,
    unless the folder is read-only.
    """
    digest = f"{digest}, {VERSION}"
    stored = _read(file, digest, network.z_dim)
    if stored is not None:
        return stored
    styles = measure_styles(network)
    _write(file, digest, styles)
    return styles


def measure_styles(network: Network) -> dict[str, NDArray[np.float32]]:
    """Return by name the mean style of the pictures of its biome nearest to its hour."""
    drawn = [draw_scene(SEED, index, 0) for index in range(CHOSEN_FROM)]
    styles = {}
    for biome in BIOMES:
        indices = [index for index, scene in enumerate(drawn) if scene.biome == biome]
        for hour, at in HOURS.items():
            nearest = sorted(indices, key=lambda index: hours_between(drawn[index].hour, at))
            pictures = [
                to_planes(render_pair(SEED, index, network.size).image)
                for index in nearest[:PICTURES]
            ]
            styles[f"{biome}-{hour}"] = network.encode(np.stack(pictures)).mean(0)
    return styles


def hours_between(one: float, other: float) -> float:
    """Return how many hours are between two times of day, at most 12."""
    apart = abs(one - other) % 24
    return min(apart, 24 - apart)


def start_scenes(size: int) -> list[Scene]:
    """Return rendered maps to start from."""
    return [Scene(name, render_pair(SEED, index, size).labels) for name, index in SCENES.items()]


def _read(file: Path, digest: str, z_dim: int) -> dict[str, NDArray[np.float32]] | None:
    try:
        stored = json.loads(file.read_text("utf-8"))
        styles = {name: np.array(stored["styles"][name], np.float32) for name in NAMES}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if stored.get("checkpoint") != digest or any(
        each.shape != (z_dim,) for each in styles.values()
    ):
        return None
    return styles


def _write(file: Path, digest: str, styles: dict[str, NDArray[np.float32]]) -> None:
    """Write the file in one step, as others may read it meanwhile."""
    values = {name: [round(float(each), 5) for each in style] for name, style in styles.items()}
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
            json.dump({"checkpoint": digest, "styles": values}, temporary)
        Path(temporary.name).chmod(0o644)
        os.replace(temporary.name, file)
    except OSError:
        return  # measured again next time
