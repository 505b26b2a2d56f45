"""Data sets of pairs: rendered, or imported from photos after checks."""

from landscapes.data.pairs import Pairs, open_pairs

__all__ = ["Pairs", "open_pairs"]
