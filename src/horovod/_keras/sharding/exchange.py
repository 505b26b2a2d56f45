"""What ranks exchange in a step of an optimizer whose state is divided among them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Protocol

from horovod._rank.reduction import ReduceOp
from horovod._train.reduce_op import Average

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._train.division import Division, Shape


class ShareExchange(Protocol):
    """The collectives of one optimizer, on tensors of one backend."""

    def dense(self, gradient: Any, variable: Any, /) -> Any:
        """Return a gradient as it is sent; a sparse one made dense, or refused."""

    def scatter(self, gradients: Sequence[Any], names: Sequence[str], division: Division) -> Any:
        """Return this rank's elements of the reduced gradients, each in one dimension.

        Args:
            gradients: of this rank.
            names: of their variables; other ones on another rank are an error of the job.
            division: which elements this rank has.
        """

    def gather(
        self, pieces: Sequence[Any], shapes: Sequence[Shape], names: Sequence[str],
        division: Division,
    ) -> list[Any]:  # fmt: skip
        """Return the whole tensors of which each rank has its elements.

        Args:
            pieces: the elements of this rank, each in one dimension.
            shapes: of the whole tensors.
            names: of their variables; other ones on another rank are an error of the job.
            division: which elements this rank has.
        """

    def total(self, numbers: Any, division: Division) -> Any:
        """Return the sums over the ranks of a tensor of numbers."""


class GroupedExchange:
    """The collectives of an adapter that has them for lists of tensors of any rows.

    Args:
        ops: the module of the adapter's operations.
        settings: of the reduction, with ``op``, ``compression``, ``predivide_factor`` and
            ``process_set``.
        prefix: returns what the names of the operations begin with.
        dense: makes a sparse gradient of a variable dense, or refuses it.
    """

    def __init__(
        self, ops: Any, settings: Any, prefix: Callable[[], str],
        dense: Callable[[Any, Any], Any],
    ) -> None:  # fmt: skip
        self._ops = ops
        self._settings = settings
        self._prefix = prefix
        self._dense = dense

    def dense(self, gradient: Any, variable: Any, /) -> Any:
        """Return a gradient as it is sent; a sparse one made dense, or refused."""
        return self._dense(gradient, variable)

    def scatter(
        self, gradients: Sequence[Any], names: Sequence[str], division: Division
    ) -> list[Any]:
        """Return this rank's elements of the reduced gradients, each in one dimension."""
        flat = [self._ops.reshape(gradient, (-1,)) for gradient in gradients]
        if division.size == 1:
            return flat
        settings = self._settings
        factor = settings.predivide_factor if settings.op is Average else 1.0
        pieces = self._ops.grouped_reducescatter(
            flat, op=settings.op, compression=settings.compression,
            process_set=settings.process_set, prescale_factor=1.0 / factor,
            postscale_factor=factor, name=self._name("gradients", names),
        )  # fmt: skip
        counts = [division.counts(tuple(g.shape))[division.rank] for g in gradients]
        # A graph does not know how many rows have arrived.
        return [self._ops.reshape(p, (n,)) for p, n in zip(pieces, counts, strict=True)]

    def gather(
        self, pieces: Sequence[Any], shapes: Sequence[Shape], names: Sequence[str],
        division: Division,
    ) -> list[Any]:  # fmt: skip
        """Return the whole tensors of which each rank has its elements."""
        whole = list(pieces)
        if division.size > 1:
            whole = self._ops.grouped_allgather(
                whole, name=self._name("updates", names), process_set=self._settings.process_set
            )
        return [self._ops.reshape(w, shape) for w, shape in zip(whole, shapes, strict=True)]

    def total(self, numbers: Any, division: Division) -> Any:
        """Return the sums over the ranks of a tensor of numbers."""
        if division.size == 1:
            return numbers
        return self._ops.allreduce(
            numbers, op=ReduceOp.SUM, name=f"{self._prefix()}.norms",
            process_set=self._settings.process_set,
        )  # fmt: skip

    def _name(self, what: str, names: Sequence[str]) -> str:
        """Return the name of an operation; ranks that send other tensors have another one."""
        return f"{self._prefix()}.{what}.{zlib.crc32(chr(0).join(names).encode()):08x}"
