"""Reads drawn maps: colors to classes, repairs, and a report of them."""
