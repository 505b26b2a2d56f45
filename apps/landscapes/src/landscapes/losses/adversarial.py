"""The hinge loss of both sides, and feature matching.

Judgments are what a discriminator returns: for each scale the features of all layers, of which the
last are the judgments of patches. All scales weigh the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

Judgments = Sequence[Sequence[torch.Tensor]]


def hinge_of_discriminator(fake: Judgments, real: Judgments) -> torch.Tensor:
    """Return the mean of max(0, 1 + fake) + max(0, 1 - real) over patches and scales."""
    terms = [
        F.relu(1 + of_fake[-1]).mean() + F.relu(1 - of_real[-1]).mean()
        for of_fake, of_real in zip(fake, real, strict=True)
    ]
    return torch.stack(terms).mean()


def hinge_of_generator(fake: Judgments) -> torch.Tensor:
    """Return the mean of -fake over patches and scales."""
    return torch.stack([-each[-1].mean() for each in fake]).mean()


def feature_matching(fake: Judgments, real: Judgments) -> torch.Tensor:
    """Return the mean distance of inner features, summed over layers, averaged over scales.

    No gradient flows to the features of ``real``.
    """
    terms = [
        F.l1_loss(one, other.detach())
        for ours, theirs in zip(fake, real, strict=True)
        for one, other in zip(ours[:-1], theirs[:-1], strict=True)
    ]
    return torch.stack(terms).sum() / len(fake)
