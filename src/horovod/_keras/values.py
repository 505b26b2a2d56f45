"""Collectives on values with Keras on JAX and PyTorch: numbers, arrays and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.compression import NoneCompressor
from horovod._train.reduce_op import Average, resolve_reduce_op

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._train.compression import CompressorLike


class Values:
    """The collectives of a framework, with the arguments that they have for Keras.

    Without a name, JAX takes the file and line of the caller, and PyTorch counts up.

    Args:
        ops: the module with the collectives of the framework.
        convert: makes what these take of a value.
    """

    def __init__(self, ops: Any, convert: Callable[[Any], Any]) -> None:
        self._ops = ops
        self._convert = convert

    def allreduce(
        self,
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: CompressorLike = NoneCompressor,
    ) -> Any:
        """Reduces a value over all ranks.

        Args:
            value: a number, an array or a tensor, of the same shape and dtype on all ranks.
            name: what the ranks agree on; see above for None.
            average: deprecated; True for op=Average, False for op=Sum.
            prescale_factor: applied before the reduction.
            postscale_factor: applied after it.
            op: Average if None.
            compression: how the value travels.

        Returns:
            A tensor of PyTorch; an array of JAX, or of NumPy where JAX has no such dtype.

        Raises:
            UsageError: ``op`` and ``average`` are both given.
        """
        return self._ops.allreduce(
            self._convert(value),
            op=resolve_reduce_op(op, average),
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
        )

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """Concatenates the values of all ranks along the first dimension, in rank order.

        Args:
            value: of the same dtype and shape on all ranks, but for the first dimension.
            name: what the ranks agree on; see above for None.

        Returns:
            A tensor of PyTorch; an array of JAX, or of NumPy where JAX has no such dtype.
        """
        return self._ops.allgather(self._convert(value), name=name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """Return the value of one rank on all of them.

        Args:
            value: of the same shape and dtype on all ranks.
            root_rank: whose value.
            name: what the ranks agree on; see above for None.

        Returns:
            A tensor of PyTorch; an array of JAX, or of NumPy where JAX has no such dtype.
        """
        return self._ops.broadcast(self._convert(value), root_rank, name=name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduces a value over all ranks, and gives each its share of the rows.

        Args:
            value: of the same shape and dtype on all ranks; not a scalar.
            name: what the ranks agree on; see above for None.
            op: Average or Sum.

        Returns:
            A tensor of PyTorch; an array of JAX, or of NumPy where JAX has no such dtype.
        """
        return self._ops.reducescatter(self._convert(value), op=op, name=name)
