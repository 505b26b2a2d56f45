"""Where older programs look for the version: ``horovod.__version__``."""

from horovod import __version__

__all__ = ["__version__"]
