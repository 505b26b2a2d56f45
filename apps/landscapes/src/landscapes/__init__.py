"""Turns a sketch of colored regions into a landscape: a SPADE-style network under Horovod."""

__version__ = "1.0.0"
