"""The operations at the path that libraries use; scripts find them in ``horovod.tensorflow``."""

from horovod._train import interface, library_interface
from horovod._train.interface import *  # noqa: F403
from horovod._train.library_interface import *  # noqa: F403
from horovod.tensorflow import ops
from horovod.tensorflow.gradients import _alltoall as _alltoall_grad
from horovod.tensorflow.ops import *  # noqa: F403

# Type checkers follow lists of names one step only, so each is added here.
__all__ = ["_alltoall_grad"]
__all__ += ops.__all__
__all__ += interface.__all__
__all__ += library_interface.__all__
