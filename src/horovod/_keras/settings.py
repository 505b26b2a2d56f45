"""The arguments of DistributedOptimizer for Keras on JAX and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod._train.call_site import call_site
from horovod._train.compression import NoneCompressor
from horovod._train.optimizer_options import checked_groups, checked_reduction, groups_asked_for
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from typing_extensions import Unpack

    from horovod._keras.seam import Seam
    from horovod._rank.reduction import ReduceOp
    from horovod._train.compression import CompressorLike
    from horovod._train.optimizer_options import CheckedGroups, ReductionOptions


@dataclass(frozen=True)
class ReductionSettings:
    """The settings of a reduction of gradients.

    Attributes:
        name: what the operations are called after.
        op: Average or Sum.
        predivide_factor: divide by this before the sum, and by the rest after it.
        compression: how gradients travel.
        sparse_as_dense: whether sparse gradients become dense before; they are refused otherwise.
        groups: how many groups, or the keys of the variables that go together; None leaves it to
            the backend.
        process_set: the ranks that take part; gradients of the others stay as they are.
        scale_local_gradients: whether gradients of local variables are divided by the set's size.
        call_site: ``file:line`` where the optimizer was made.
    """

    name: str
    op: ReduceOp = Average
    predivide_factor: float = 1.0
    compression: CompressorLike = NoneCompressor
    sparse_as_dense: bool = False
    groups: CheckedGroups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    call_site: str = ""


def make_settings(
    name: str, seam: Seam, *, stacklevel: int = 3, **options: Unpack[ReductionOptions]
) -> ReductionSettings:
    """Check the arguments about the reduction.

    Args:
        name: what the operations are called after.
        seam: the functions of the backend.
        stacklevel: frames from here to the line that a warning points at.
        **options: as users gave them.

    Raises:
        UsageError: the arguments are wrong.
    """
    others: dict[str, Any] = {**options}
    for argument in ("device_dense", "device_sparse"):
        device = others.pop(argument, "")
        if device:
            raise UsageError(
                f"{argument}={device!r} places operations of TensorFlow; with Keras on another "
                "backend gradients are reduced where they are, so leave it out"
            )
    factor = others.pop("gradient_predivide_factor", 1.0)
    op = checked_reduction(others.pop("op", Average), factor)
    num_groups, groups = others.pop("num_groups", 0), others.pop("groups", None)

    def key(variable: Any) -> Hashable:
        if not seam.is_variable(variable):
            raise TypeError
        return seam.key(variable)

    groups = checked_groups(groups_asked_for(num_groups, groups, stacklevel + 1), key)
    return ReductionSettings(name, op, factor, groups=groups, call_site=call_site(), **others)
