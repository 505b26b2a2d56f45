"""Arrays in host memory that all ranks get from one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horovod._native import Buffer
from horovod._train.same_parameters import Parameter, check_same_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.group import Group


def broadcast_arrays(
    group: Group, described: Sequence[Parameter], arrays: Sequence[np.ndarray], root: int, name: str
) -> None:
    """Overwrites the arrays on all ranks with those of the root; collective, one operation.

    Args:
        group: the ranks.
        described: what the arrays belong to, which all ranks compare.
        arrays: C-contiguous, of any dtype without objects.
        root: a rank of the job.
        name: what the ranks agree on.

    Raises:
        MismatchError: the ranks describe different arrays.
        HorovodInternalError: the job failed.
    """
    check_same_parameters(group, described, f"{name}.parameters", "")
    # As bytes, since NumPy's buffers know nothing of bfloat16.
    bytes_of = [array.reshape(-1).view(np.uint8) for array in arrays if array.nbytes]
    views = [Buffer.from_array(each) for each in bytes_of]
    if views:
        group.broadcast(views, views, root, name=name, waits_next=True, keep=arrays).wait()
