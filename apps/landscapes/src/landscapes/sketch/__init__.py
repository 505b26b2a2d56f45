"""Reads drawn maps: colors to classes, repairs, and a report of them."""

from landscapes.sketch.reader import Report, Sketch, fit_labels, read_sketch

__all__ = ["Report", "Sketch", "fit_labels", "read_sketch"]
