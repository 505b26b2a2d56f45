"""The path where libraries import the questions about a job, as methods of one object."""

from horovod._train.basics import HorovodBasics

__all__ = ["HorovodBasics"]
