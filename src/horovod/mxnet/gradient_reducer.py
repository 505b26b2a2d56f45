"""Gradients of one step, reduced in place: one by one, or in groups."""

from __future__ import annotations

import copy
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from horovod._rank.reduction import Reduction
from horovod._train.compression import compressed, quantizing
from horovod._train.gradients import split_list
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.optimizer_options import checked_reduction, reduces
from horovod._train.process_set import ProcessSet, group_of
from horovod._train.reduce_op import Average
from horovod.errors import UsageError
from horovod.mxnet import calls
from horovod.mxnet.compression import Compression
from horovod.mxnet.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mxnet as mx

_numbers = NameNumbers()


class Gradient(NamedTuple):
    """A gradient, and what the ranks call it."""

    name: str
    array: mx.nd.NDArray


class GradientReducer:
    """Averages gradients over the ranks of a process set; all of it is left to MXNet's engine.

    Args:
        process_set: the ranks that take part; gradients of others stay as they are.
        predivide_factor: gradients are divided by it before the sum, and by the rest after it.
        num_groups: in how many operations they are reduced; 0 for one each.
        prefix: of their names; reducers with the same one are numbered, from the second on.
        compression: how gradients travel.

    Attributes:
        process_set: see above.

    Raises:
        UsageError: the factor is 0, or the number of groups is negative.
    """

    def __init__(
        self,
        process_set: ProcessSet,
        predivide_factor: float,
        num_groups: int,
        prefix: str,
        compression: Any = Compression.none,
    ) -> None:
        checked_reduction(Average, predivide_factor)
        if num_groups < 0:
            raise UsageError(f"num_groups={num_groups} is negative")
        self.process_set = process_set
        plain = Reduction(Average, 1.0 / predivide_factor, predivide_factor)
        self._reduction = quantizing(plain, compression)
        self._num_groups = num_groups
        self._prefix = prefix
        self._number = JobNumber(_numbers, (prefix,))
        self._compression = compression

    def copied(self) -> GradientReducer:
        """Another one that reduces in the same way, under names of its own."""
        made = copy.copy(self)
        made._number = JobNumber(_numbers, (self._prefix,))
        return made

    def reduce(self, gradients: Sequence[Gradient]) -> None:
        """Reduces gradients in place; the first has the highest priority."""
        group = group_of(self.process_set)
        if not gradients or not reduces(group):
            return
        number = self._number.within(group)
        prefix = self._prefix if number == 1 else f"{self._prefix}{number}."
        sent = [compressed(self._compression, gradient.array) for gradient in gradients]
        named = [
            Gradient(prefix + each.name, array)
            for each, (array, _) in zip(gradients, sent, strict=True)
        ]
        if self._num_groups:
            self._reduce_in_groups(named)
        else:
            for place, (name, array) in enumerate(named):
                self._allreduce([array], "allreduce", name, -place)
        for each, (array, kept) in zip(gradients, sent, strict=True):
            if array is not each.array:
                each.array[:] = self._compression.decompress(array, kept)

    def _reduce_in_groups(self, gradients: Sequence[Gradient]) -> None:
        """In consecutive parts, each of one dtype."""
        parts = split_list(gradients, min(self._num_groups, len(gradients)))
        for place, part in enumerate(parts):
            by_dtype = sorted(part, key=lambda each: dtype_name(each.array))
            for _, alike in groupby(by_dtype, key=lambda each: dtype_name(each.array)):
                members = list(alike)
                name = f"{members[0].name}:{members[-1].name}"
                arrays = [member.array for member in members]
                self._allreduce(arrays, "grouped_allreduce", name, -place)

    def _allreduce(
        self, arrays: list[mx.nd.NDArray], prefix: str, name: str, priority: int
    ) -> None:
        call = calls.call_of(prefix, self.process_set, name, priority)
        calls.allreduce_(call, arrays, self._reduction)
