"""Data sets of pairs: rendered ones, folders of photos, and their checks."""

from landscapes.data.pairs import Pairs, open_pairs

__all__ = ["Pairs", "open_pairs"]
