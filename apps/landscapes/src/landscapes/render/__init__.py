"""Renders pairs of landscape and label map, each reproducible by its seed and index alone."""

from landscapes.render.picture import VERSION, render_pair

__all__ = ["VERSION", "render_pair"]
