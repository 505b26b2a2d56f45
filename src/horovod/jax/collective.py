"""The description of a collective in a traced program, fixed when it is traced."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from horovod import _native
from horovod._rank.reduction import ReduceOp
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._train.structure import Structure

KINDS = {
    "allreduce": _native.ALLREDUCE,
    "allgather": _native.ALLGATHER,
    "broadcast": _native.BROADCAST,
    "alltoall": _native.ALLTOALL,
    "reducescatter": _native.REDUCESCATTER,
}
"""The engine's numbers of what programs may contain."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """A parameter of the primitives.

    Attributes:
        kind: one of :data:`KINDS`.
        name: what the ranks agree on.
        call_site: ``file:line`` of the caller.
        job: the number of the context.
        process_set: the public number of the set.
        size: how many ranks are in it.
        rank: this one's place in it.
        grouped: whether a list or tree was given.
        tree: what the ranks compare of it; None for a bare array.
        op: of a reduction.
        prescale, postscale: factors before and after it.
        quantization: of an allreduce, the number of a QuantizedFormat; 0 for none.
        num_residuals: the errors of so many arrays go before these, then whose they are.
        weighted: the last operand is this rank's weight.
        root: the global rank that is broadcast from.
        root_place: its place in the set.
        rows: of an allgather, for each array, the rows of each rank; empty if all have as many.
        table: of an alltoall, by sender, the rows for each rank; empty for equal parts.
        ordered: whether it runs between its neighbors in the program.
    """

    kind: str
    name: str
    call_site: str
    job: int
    process_set: int
    size: int
    rank: int
    grouped: bool = False
    tree: Structure | None = None
    op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    quantization: int = 0
    num_residuals: int = 0
    weighted: bool = False
    root: int = 0
    root_place: int = 0
    rows: tuple[tuple[int, ...], ...] = ()
    table: tuple[tuple[int, ...], ...] = ()
    ordered: bool = True

    def but(self, **changes: Any) -> Collective:
        """A copy with other attributes."""
        return dataclasses.replace(self, **changes)

    @property
    def first(self) -> int:
        """The place of the first array of the tree among the operands."""
        return self.num_residuals + 1 if self.num_residuals else 0

    @property
    def gathers(self) -> bool:
        """Whether the engine allocates the results, as only what arrives tells their shapes."""
        return self.kind in ("allgather", "alltoall")

    @property
    def depends_on_size(self) -> bool:
        """Whether the shapes of results are those for this number of ranks."""
        return self.gathers or self.kind == "reducescatter"

    def shape_of_result(self, index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result of an array on this rank.

        Args:
            index: of the array.
            shape: of the array.

        Raises:
            UsageError: the array cannot be divided.
        """
        if not self.depends_on_size:
            return shape
        return (self.rows_of_result(index, shape[0]), *shape[1:])

    def rows_of_result(self, index: int, num_rows: int) -> int:
        """Return how many rows the result of an array has on this rank.

        Args:
            index: of the array.
            num_rows: of the array.

        Raises:
            UsageError: the array cannot be divided.
        """
        if self.kind == "allgather":
            return sum(self.rows[index]) if self.rows else num_rows * self.size
        if self.kind == "reducescatter":
            return _native.share_of(num_rows, self.rank, self.size)
        if self.table:
            return sum(row[self.rank] for row in self.table)
        if num_rows % self.size:
            raise UsageError(
                f"alltoall of {num_rows} rows cannot be divided equally between {self.size} ranks; "
                "give splits"
            )
        return num_rows
