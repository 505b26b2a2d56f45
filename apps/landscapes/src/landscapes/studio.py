"""A trained network, ready to paint: maps and styles in, pictures out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from landscapes.errors import LandscapesError
from landscapes.palette import CLASSES
from landscapes.photos import crop_square
from landscapes.runs import to_runs
from landscapes.sketch import fit_labels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class Network(Protocol):
    """What a studio needs of a network; arrays in, arrays out."""

    size: int
    z_dim: int
    name: str
    segments: bool

    def paint(self, labels: NDArray[np.uint8], styles: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return pictures (n, 3, size, size) in [-1, 1] of maps (n, size, size), styles (n, z)."""

    def encode(self, pictures: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean styles (n, z) of pictures (n, 3, size, size) in [-1, 1]."""

    def segment(self, pictures: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the maps (n, size, size) seen in pictures (n, 3, size, size) in [-1, 1]."""

    def export(self, folder: Path, opset: int | None = None) -> dict[str, float]:
        """Write each part as ONNX; return by name how far onnxruntime is from it at most."""


@dataclass(frozen=True)
class Scene:
    """A map to start from, uint8 of shape (size, size)."""

    name: str
    labels: NDArray[np.uint8]


class Studio:
    """Paints one picture at a time; every check of its inputs is a LandscapesError.

    ``styles`` maps names such as ``winter-dawn`` to vectors of shape (z,). Their order is that of
    the rows of ``sheet``: biomes from top to bottom, hours from left to right.
    """

    def __init__(
        self,
        network: Network,
        styles: Mapping[str, NDArray[np.float32]],
        scenes: Sequence[Scene],
        about: str,
    ) -> None:
        self.network = network
        self.styles = styles
        self.scenes = scenes
        self.about = about
        self.biomes = list(dict.fromkeys(name.partition("-")[0] for name in styles))
        self.hours = list(dict.fromkeys(name.partition("-")[2] for name in styles))
        self.sheet = self.paint_sheet(scenes[0].labels)

    def paint(self, labels: NDArray[np.uint8], style: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the picture of a map, uint8 of shape (size, size, 3).

        A map of another size is reduced to that of the network: each cell to what covers most.
        """
        fitted = fit_labels(labels, self.network.size)
        return to_pixels(self.network.paint(fitted[None], style[None])[0])

    def encode(self, photo: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the style of the central square of a photo, of shape (z,)."""
        style: NDArray[np.float32] = self.network.encode(self._planes(photo))[0]
        return style

    def segment(self, photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the map seen in the central square of a photo, of shape (size, size)."""
        if not self.network.segments:
            raise LandscapesError("This checkpoint has no segmenter: draw the map by hand.")
        labels: NDArray[np.uint8] = self.network.segment(self._planes(photo))[0]
        return labels

    def style_named(self, name: str) -> NDArray[np.float32]:
        """Return the style of a name. Raise LandscapesError that lists the names."""
        if name not in self.styles:
            raise LandscapesError(
                f"There is no style {name!r}: name one of {', '.join(self.biomes)}, a hyphen, "
                f"and one of {', '.join(self.hours)}."
            )
        return self.styles[name]

    def style_from(self, numbers: Sequence[float]) -> NDArray[np.float32]:
        """Return numbers as a style. Raise LandscapesError for another count of them."""
        if len(numbers) != self.network.z_dim:
            raise LandscapesError(
                f"A style of this checkpoint has {self.network.z_dim} numbers, not {len(numbers)}."
            )
        return np.array(numbers, np.float32)

    def style_drawn(self, seed: int) -> NDArray[np.float32]:
        """Return a random style: the same for the same seed."""
        return np.random.default_rng(seed).standard_normal(self.network.z_dim, np.float32)

    def describe(self) -> dict[str, Any]:
        """Return what the page shows, as values of JSON."""
        return {
            "name": self.network.name,
            "about": self.about,
            "size": self.network.size,
            "classes": [
                {
                    "id": each.id,
                    "name": each.name,
                    "color": "#" + bytes(each.color).hex(),
                    "line": each.tool == "line",
                }
                for each in CLASSES
            ],
            "biomes": self.biomes,
            "hours": self.hours,
            "styles": {
                name: [round(float(number), 5) for number in style]
                for name, style in self.styles.items()
            },
            "sheet": "api/sheet.png",
            "scenes": [{"name": each.name, "runs": to_runs(each.labels)} for each in self.scenes],
            "photo": True,
            "segment": self.network.segments,
        }

    def paint_sheet(self, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a map in all styles, uint8 of shape (biomes * size, hours * size, 3)."""
        rows = [
            np.concatenate(
                [self.paint(labels, self.styles[f"{biome}-{hour}"]) for hour in self.hours], axis=1
            )
            for biome in self.biomes
        ]
        return np.concatenate(rows)

    def _planes(self, photo: NDArray[np.uint8]) -> NDArray[np.float32]:
        return to_planes(crop_square(photo, self.network.size))[None]


def to_pixels(planes: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return planes (3, height, width) in [-1, 1] as uint8 of shape (height, width, 3)."""
    scaled = np.rint((planes.transpose(1, 2, 0) + 1) * 127.5)
    pixels: NDArray[np.uint8] = np.clip(scaled, 0, 255).astype(np.uint8)
    return pixels


def to_planes(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return uint8 of shape (height, width, 3) as planes (3, height, width) in [-1, 1]."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / 127.5 - 1
