"""Renders pairs of landscape and label map, each reproducible by its seed and index alone."""
