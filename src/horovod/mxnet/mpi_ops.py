"""The path where libraries import the operations; scripts use ``horovod.mxnet``."""

from horovod._train import interface, library_interface
from horovod._train.interface import *  # noqa: F403
from horovod._train.library_interface import *  # noqa: F403
from horovod.mxnet import ops
from horovod.mxnet.ops import *  # noqa: F403

# Type checkers follow lists of names one step only, so each is added here.
__all__ = []
__all__ += ops.__all__
__all__ += interface.__all__
__all__ += library_interface.__all__
