"""Opens a checkpoint to paint with: PyTorch behind the arrays of ``landscapes.studio``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from landscapes.checkpoint import SHIPPED, Model, load_model
from landscapes.errors import LandscapesError
from landscapes.onnx_models import OPSET, FromIds, MeanStyle, SeenClasses, export
from landscapes.studio import Studio
from landscapes.styles import load_styles, start_scenes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

STYLES = "styles.json"


class TorchNetwork:
    """The networks of a checkpoint: arrays in, arrays out. See ``landscapes.studio.Network``."""

    def __init__(self, model: Model) -> None:
        self.size = model.preset.size
        self.z_dim = model.preset.z_dim
        self.name = model.preset.name
        self.segments = model.segmenter is not None
        self._generator = FromIds(model.generator).eval()
        self._encoder = MeanStyle(model.encoder).eval()
        self._segmenter = None if model.segmenter is None else SeenClasses(model.segmenter).eval()

    def paint(self, labels: NDArray[np.uint8], styles: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return pictures (n, 3, size, size) in [-1, 1] of maps (n, size, size), styles (n, z)."""
        with torch.inference_mode():
            ids = torch.from_numpy(labels.astype(np.int32))
            pictures: NDArray[np.float32] = self._generator(ids, torch.from_numpy(styles)).numpy()
        return pictures

    def encode(self, pictures: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean styles (n, z) of pictures (n, 3, size, size) in [-1, 1]."""
        with torch.inference_mode():
            styles: NDArray[np.float32] = self._encoder(torch.from_numpy(pictures)).numpy()
        return styles

    def segment(self, pictures: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the maps (n, size, size) seen in pictures (n, 3, size, size) in [-1, 1]."""
        if self._segmenter is None:
            raise LandscapesError("This checkpoint has no segmenter: draw the map by hand.")
        with torch.inference_mode():
            labels: NDArray[np.uint8] = self._segmenter(torch.from_numpy(pictures)).byte().numpy()
        return labels

    def export(self, folder: Path, opset: int | None = None) -> dict[str, float]:
        """Write each network to ``folder`` as ONNX.

        Return by name how far onnxruntime is from PyTorch. Raise LandscapesError beyond 1e-3.
        """
        draw = torch.Generator().manual_seed(0)
        side = (self.size, self.size)
        photos = torch.rand((2, 3, *side), generator=draw) * 2 - 1
        maps = torch.randint(0, 9, (2, *side), generator=draw, dtype=torch.int32)
        styles = torch.randn((2, self.z_dim), generator=draw)
        written = {
            "generator": (self._generator, {"labels": maps, "style": styles}, "picture"),
            "encoder": (self._encoder, {"photo": photos}, "style"),
            "segmenter": (self._segmenter, {"photo": photos}, "labels"),
        }
        return {
            name: export(module, examples, output, folder / f"{name}.onnx", opset or OPSET)
            for name, (module, examples, output) in written.items()
            if module is not None
        }


def open_network(checkpoint: Path | None) -> TorchNetwork:
    """Return the networks of a checkpoint; of the shipped one for None."""
    return TorchNetwork(load_model(_path_of(checkpoint)))


def open_studio(checkpoint: Path | None) -> Studio:
    """Return a studio that paints with a checkpoint; with the shipped one for None.

    The first time, the styles are measured, which takes seconds, and kept beside the weights.
    """
    path = _path_of(checkpoint)
    return studio_of(load_model(path), (path if path.is_dir() else path.parent) / STYLES)


def studio_of(model: Model, styles: Path) -> Studio:
    """Return a studio that paints with a model, whose styles are kept in a file."""
    network = TorchNetwork(model)
    named = load_styles(network, model.digest, styles)
    return Studio(network, named, start_scenes(network.size), _about(model))


def _path_of(checkpoint: Path | None) -> Path:
    if checkpoint is not None:
        return checkpoint
    if not SHIPPED.is_dir():
        raise LandscapesError(f"{SHIPPED} is missing: name a checkpoint, --checkpoint FOLDER.")
    return SHIPPED


def _about(model: Model) -> str:
    numbers = sum(each.numel() for each in model.generator.parameters())
    return (
        "Rendered landscapes, not photographs: the network has seen rendered pictures alone. "
        f"{model.preset.name}, {numbers / 1e6:.1f} million parameters, {model.digest}."
    )
