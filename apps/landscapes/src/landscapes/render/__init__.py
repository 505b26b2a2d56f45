"""Renders pairs of landscape and label map, each reproducible by its seed and index alone."""

from landscapes.pair import RENDERER as VERSION
from landscapes.render.picture import render_pair

__all__ = ["VERSION", "render_pair"]
