"""The settings of reductions by tapes and optimizers, and the arguments that yield them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod._train.optimizer_options import checked_groups, checked_reduction, groups_asked_for
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_groups import variable_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod._rank.reduction import ReduceOp
    from horovod._train.compression import CompressorLike
    from horovod._train.optimizer_options import CheckedGroups, ReductionOptions


@dataclass(frozen=True)
class ReductionSettings:
    """The settings of a reduction of gradients.

    Attributes:
        name: what the operations are called after.
        op: Average, or another reduction.
        predivide_factor: divide by this before the sum, and by the rest after it; dense ones only.
        compression: how gradients travel.
        sparse_as_dense: whether ``tf.IndexedSlices`` become dense before.
        groups: how many groups, or the keys of the variables that go together; None puts small
            gradients together.
        process_set: the ranks that take part; gradients of the others stay as they are.
        device_dense, device_sparse: where the operations are placed; anywhere if empty.
        scale_local_gradients: whether gradients of local variables are divided by the set's size.
    """

    name: str
    op: ReduceOp = Average
    predivide_factor: float = 1.0
    compression: CompressorLike = Compression.none
    sparse_as_dense: bool = False
    groups: CheckedGroups = None
    process_set: ProcessSet = global_process_set
    device_dense: str = ""
    device_sparse: str = ""
    scale_local_gradients: bool = True


def make_settings(
    name: str, *, stacklevel: int = 3, **options: Unpack[ReductionOptions]
) -> ReductionSettings:
    """Check the arguments that tapes and optimizers share.

    Args:
        name: what the operations are called after.
        stacklevel: frames from here to the line that a warning points at.
        **options: as users gave them.

    Raises:
        UsageError: the arguments are wrong.
    """
    others: dict[str, Any] = {**options}
    factor = others.pop("gradient_predivide_factor", 1.0)
    op = checked_reduction(others.pop("op", Average), factor)
    num_groups, groups = others.pop("num_groups", 0), others.pop("groups", None)
    groups = checked_groups(groups_asked_for(num_groups, groups, stacklevel + 1), variable_key)
    return ReductionSettings(name, op, factor, groups=groups, **others)
