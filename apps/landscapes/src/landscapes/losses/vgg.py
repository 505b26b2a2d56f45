"""The distance of pictures in the features of VGG19, as in the paper, with weights from a file."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import nn

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    from pathlib import Path

# Channels of the convolutions; 0 halves the picture. The layers have torchvision's numbers.
LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512)
# After which layers features are compared: relu1_1, relu2_1, relu3_1, relu4_1 and relu5_1.
COMPARED = {1: 1 / 32, 6: 1 / 16, 11: 1 / 8, 20: 1 / 4, 29: 1.0}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VggPerceptual(nn.Module):
    """Mean distance of features at five depths of a frozen VGG19, deeper ones weighing more.

    ``digest`` names the file of weights.
    """

    def __init__(self, weights: dict[str, torch.Tensor], digest: str) -> None:
        super().__init__()
        self.digest = digest
        self.features = _convolutions()
        self.load_state_dict(weights)
        self.eval().requires_grad_(False)

    def forward(self, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return the distance of pictures (n, 3, h, w) in [-1, 1]; no gradient flows to ``real``.

        Sides are at least 16 pixels.
        """
        with torch.no_grad():
            theirs = self._features_of(real)
        ours = self._features_of(fake)
        terms = [
            weight * F.l1_loss(one, other)
            for weight, one, other in zip(COMPARED.values(), ours, theirs, strict=True)
        ]
        return torch.stack(terms).sum()

    def _features_of(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        found = []
        mean, deviation = (pictures.new_tensor(each).view(3, 1, 1) for each in (MEAN, DEVIATION))
        features = ((pictures + 1) / 2 - mean) / deviation
        for number, layer in enumerate(self.features):
            features = layer(features)
            if number in COMPARED:
                found.append(features)
        return found


def _convolutions() -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for channels in LAYERS:
        if channels:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def load_vgg(file: Path) -> VggPerceptual:
    """Return the loss with the weights in ``file``: torchvision's state dict, or as safetensors.

    Raise LandscapesError for a file that cannot be read, or that has other tensors.
    """
    remedy = (
        "give the file of torchvision's VGG19, such as vgg19-dcbb9e9d.pth, which "
        "torchvision.models.vgg19(weights='DEFAULT') puts into ~/.cache/torch/hub/checkpoints."
    )
    try:
        content = file.read_bytes()
        stored: Any = _read(file, content)
    except OSError as error:
        raise LandscapesError(f"{file} cannot be read ({error.strerror}): {remedy}") from error
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise LandscapesError(f"{file} holds no weights: {remedy}") from error
    wanted = _convolutions().state_dict(prefix="features.")
    found = stored if isinstance(stored, dict) else {}
    for name, tensor in wanted.items():
        shape = tuple(getattr(found.get(name), "shape", ()))
        if shape != tuple(tensor.shape):
            raise LandscapesError(
                f"{file} has {f'a {name} of shape {shape}' if shape else f'no {name}'}, and VGG19 "
                f"has one of shape {tuple(tensor.shape)}: {remedy}"
            )
    weights = {name: found[name] for name in wanted}
    return VggPerceptual(weights, hashlib.sha256(content).hexdigest()[:16])


def _read(file: Path, content: bytes) -> Any:
    if file.suffix == ".safetensors":
        return load_safetensors(content)
    return torch.load(file, map_location="cpu", weights_only=True)
