"""What a model, untrained or trained, paints of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from landscapes.nets import encode_labels
from landscapes.train.batches import to_images, to_pictures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.checkpoint import Model

BATCH = 32


@dataclass(frozen=True)
class Painter:
    """Paints uint8 images with a model, on the device where the model is."""

    model: Model

    @property
    def _device(self) -> torch.device:
        return next(self.model.generator.parameters()).device

    @torch.inference_mode()
    def styles_of(self, images: NDArray[np.uint8]) -> torch.Tensor:
        """Return the mean styles (N, z) of images (N, s, s, 3)."""
        parts = [
            self.model.encoder(to_pictures(images[start : start + BATCH]).to(self._device))[0].cpu()
            for start in range(0, len(images), BATCH)
        ]
        return torch.cat(parts)

    @torch.inference_mode()
    def paint(self, labels: NDArray[np.uint8], styles: torch.Tensor) -> NDArray[np.uint8]:
        """Return images (N, s, s, 3) of maps (N, s, s) in styles (N, z)."""
        parts = []
        for start in range(0, len(labels), BATCH):
            planes = encode_labels(torch.from_numpy(labels[start : start + BATCH]))
            chosen = styles[start : start + BATCH].to(self._device)
            painted = self.model.generator(planes.to(self._device), chosen)
            parts.append(to_images(painted))
        return np.concatenate(parts)
