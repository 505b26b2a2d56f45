"""The version at the path that older programs use: ``horovod.__version__``."""

from horovod import __version__

__all__ = ["__version__"]
