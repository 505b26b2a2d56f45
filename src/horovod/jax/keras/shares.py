"""The exchange of parts with Keras on JAX, inside and outside of jit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.sharding.optimizer import ShardReducer
from horovod._rank.reduction import ReduceOp
from horovod.jax.keras.reducer import JaxReducer
from horovod.jax.ops import allreduce
from horovod.jax.shares.exchange import Exchange
from horovod.jax.shares.values import Share, piece_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._keras.reducing_optimizer import Wrapping
    from horovod._train.division import Division, Shape


class JaxShareExchange:
    """The collectives of one optimizer.

    Args:
        reducer: which makes gradients dense, and has the settings.
    """

    def __init__(self, reducer: JaxReducer) -> None:
        self._reducer = reducer

    def dense(self, gradient: Any, variable: Any) -> Any:
        """Return a gradient as it is sent; a sparse one made dense, or refused."""
        return self._reducer.dense(gradient, variable)

    def scatter(
        self, gradients: Sequence[Any], names: Sequence[str], division: Division
    ) -> list[Any]:
        """Return this rank's elements of the reduced gradients, each in one dimension."""
        # As scalars have a share, too.
        rows = [gradient.reshape(-1) for gradient in gradients]
        return [piece_of(v, division) for v in self._exchange.scatter(rows, names, None, division)]

    def gather(
        self, pieces: Sequence[Any], shapes: Sequence[Shape], names: Sequence[str],
        division: Division,
    ) -> list[Any]:  # fmt: skip
        """Return the whole arrays of which each rank has its elements."""
        values = [Share(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return self._exchange.gather(values, names, division)

    def total(self, numbers: Any, division: Division) -> Any:
        """Return the sums over the ranks of an array of numbers."""
        if division.size == 1:
            return numbers
        exchange = self._exchange
        return allreduce(
            numbers, op=ReduceOp.SUM, name=f"{exchange.name}.norms",
            process_set=exchange.process_set,
        )  # fmt: skip

    @property
    def _exchange(self) -> Exchange:
        settings = self._reducer.settings
        return Exchange(
            self._reducer.prefix(), settings.process_set, settings.op, settings.compression,
            settings.predivide_factor,
        )  # fmt: skip


def begin_sharding(wrapping: Wrapping) -> tuple[ShardReducer, None]:
    """Make what exchanges the parts of an optimizer."""
    reducer = JaxReducer(wrapping.settings)
    return ShardReducer(JaxShareExchange(reducer), wrapping.settings), None
