"""One step of both sides: generator with style encoder, and discriminator.

All passes share one forward pass of each network. The discriminator's weights do not change
between the two backward passes, so its judgments of the generator's step serve its own step, too.
Each backward pass names the parameters whose gradients it wants. Without that, the generator's
pass would leave gradients in the discriminator, whose optimizer would reduce them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import horovod.torch as hvd
from landscapes.losses import (
    divergence,
    feature_matching,
    hinge_of_discriminator,
    hinge_of_generator,
)
from landscapes.nets import encode_labels
from landscapes.nets.encoder import draw_styles

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from landscapes.losses import Perceptual, VggPerceptual
    from landscapes.train.batches import Batch
    from landscapes.train.networks import Networks

TERMS = ("gan", "features", "perceptual", "style", "discriminator")


@dataclass(frozen=True)
class Weights:
    """How much each term of the generator's loss counts; all but ``gan`` are relative to it."""

    gan: float = 1.0
    features: float = 10.0
    perceptual: float = 10.0
    style: float = 0.05


class Trainer:
    """Steps of all networks. Gradients are averages over the ranks.

    Args:
        networks: change in place.
        perceptual: the loss that guides by features, or None.
        weights: of the terms.
        half: compute in bfloat16 where PyTorch finds that safe.
    """

    def __init__(
        self,
        networks: Networks,
        perceptual: Perceptual | VggPerceptual | None,
        weights: Weights | None = None,
        *,
        half: bool = False,
    ) -> None:
        self.networks, self.perceptual = networks, perceptual
        self.weights = weights or Weights()
        self.half = half
        painting, judging = networks.preset.rates
        self.painting = _optimizer(networks.painter, painting)
        self.judging = _optimizer(networks.discriminator, judging)
        self._painters = list(networks.painter.parameters())
        self._judges = list(networks.discriminator.parameters())

    def step(self, batch: Batch, number: int) -> torch.Tensor:
        """Take step ``number`` (from 1) and return the terms of this rank's loss, detached: (5,).

        Their order is that of ``TERMS``. Perceptual loss is 0 if there is none.
        """
        with self._autocast(batch):
            terms, judging = self._forward(batch)
        weights = self.weights
        factors = (weights.gan, weights.features, weights.perceptual, weights.style)
        painting = torch.stack(
            [factor * term for factor, term in zip(factors, terms, strict=True)]
        ).sum()
        torch.autograd.backward(painting, inputs=self._painters, retain_graph=True)
        # The gradients of the painter travel meanwhile.
        torch.autograd.backward(judging, inputs=self._judges)
        for optimizer in (self.painting, self.judging):
            optimizer.step()
            optimizer.zero_grad()
        self.networks.update_average(number)
        return torch.stack([*terms, judging]).detach()

    def _forward(self, batch: Batch) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the terms of the painter's loss, and the discriminator's loss."""
        networks, real = self.networks, batch.pictures
        planes = encode_labels(batch.labels, real.dtype)
        wanted = planes if batch.drawn is None else encode_labels(batch.drawn, real.dtype)
        mean, log_variance = networks.painter.encoder(real)
        styles = draw_styles(mean, log_variance, batch.noise)
        fake = networks.painter.generator(wanted, styles)
        of_fake, of_real = networks.discriminator(planes, fake, real)
        seen = self.perceptual(fake, real) if self.perceptual else fake.new_zeros(())
        terms = [
            hinge_of_generator(of_fake),
            feature_matching(of_fake, of_real),
            seen,
            divergence(mean, log_variance),
        ]
        return terms, hinge_of_discriminator(of_fake, of_real)

    def _autocast(self, batch: Batch) -> AbstractContextManager[object]:
        if not self.half:
            return nullcontext()
        return torch.autocast(batch.pictures.device.type, torch.bfloat16)


def _optimizer(module: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return Adam without momentum, over the ranks; the same for any number of them.

    Rates do not grow with the ranks: adversarial training does not bear it.
    """
    adam = torch.optim.Adam(module.parameters(), rate, betas=(0.0, 0.9))
    optimizer: torch.optim.Optimizer = hvd.DistributedOptimizer(
        adam, named_parameters=module.named_parameters()
    )
    return optimizer
