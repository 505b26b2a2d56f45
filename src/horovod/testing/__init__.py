"""For tests of training code: several ranks on one machine, without a launcher.

:func:`run_ranks` calls a function on each rank of a new job, in threads of this process, which take
milliseconds to start, or in processes. ``docs/testing.md`` is the guide.

Example:
    >>> import horovod.torch as hvd
    >>> from horovod.testing import run_ranks
    >>> def train():
    ...     hvd.init()
    ...     return hvd.rank(), hvd.size()
    >>> run_ranks(2, train)
    [(0, 2), (1, 2)]
"""

from horovod._rank.context import inherited
from horovod.testing.manual_clock import ManualClock
from horovod.testing.ranks import run_ranks

__all__ = ["ManualClock", "inherited", "run_ranks"]
