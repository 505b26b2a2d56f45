"""Initial weights, and the plain weights of a network with spectral normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from collections.abc import Iterator


def initialize(module: nn.Module, gain: float, seed: int) -> None:
    """Draw all weights from Xavier's normal distribution and set biases to 0.

    The same seed gives the same weights on every rank, whatever else draws numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    for each in module.modules():
        if isinstance(each, (nn.Conv2d, nn.Linear)):
            _initialize(each, gain, generator)


def _initialize(layer: Any, gain: float, generator: torch.Generator) -> None:
    parametrized = parametrize.is_parametrized(layer, "weight")
    weight = layer.parametrizations.weight.original if parametrized else layer.weight
    nn.init.xavier_normal_(weight, gain, generator)
    if parametrized:
        _restart_power_iteration(layer, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _restart_power_iteration(layer: Any, generator: torch.Generator) -> None:
    """Draw the singular vectors anew and iterate until they fit the new weight."""
    parametrization = layer.parametrizations.weight
    spectral = parametrization[0]
    with torch.no_grad():
        spectral._u.normal_(generator=generator)
        spectral._v.normal_(generator=generator)
        matrix = parametrization.original.flatten(1)
        spectral._power_method(matrix, 15)


@torch.no_grad()
def plain_weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and value of each parameter as the network uses it.

    Where spectral normalization is in the way, this is the weight divided by its largest singular
    value, without an iteration of its estimate. Names are those of the same network without it.
    """
    each: Any
    for prefix, each in module.named_modules():
        if parametrize.is_parametrized(each):
            was_training = each.training
            each.eval()
            yield f"{prefix}.weight", each.weight.detach()
            each.train(was_training)
    for name, parameter in module.named_parameters():
        if ".parametrizations." not in name:
            yield name, parameter.detach()
