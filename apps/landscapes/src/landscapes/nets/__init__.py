"""The networks: generator, style encoder, discriminator, and segmenters that judge and guide."""

from landscapes.nets.discriminator import Discriminator
from landscapes.nets.encoder import StyleEncoder
from landscapes.nets.generator import Generator
from landscapes.nets.labels import encode_labels
from landscapes.nets.presets import PRESETS, Preset, preset_named

__all__ = [
    "PRESETS",
    "Discriminator",
    "Generator",
    "Preset",
    "StyleEncoder",
    "encode_labels",
    "preset_named",
]
