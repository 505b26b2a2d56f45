"""The terms of the loss. Each is a mean over pictures, so that N ranks of b equal one of N x b."""

from landscapes.losses.adversarial import (
    feature_matching,
    hinge_of_discriminator,
    hinge_of_generator,
)
from landscapes.losses.perceptual import Perceptual
from landscapes.losses.style import divergence
from landscapes.losses.vgg import VggPerceptual, load_vgg

__all__ = [
    "Perceptual",
    "VggPerceptual",
    "divergence",
    "feature_matching",
    "hinge_of_discriminator",
    "hinge_of_generator",
    "load_vgg",
]
