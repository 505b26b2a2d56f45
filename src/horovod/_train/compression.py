"""The interface of gradient compression in all frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from horovod._rank.reduction import Quantized, QuantizedFormat, ReduceOp, Reduction
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Buffer


class Compressor:
    """The interface of a compression; derive from it to supply your own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to reduce (dense) and what ``decompress`` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Turns the reduced tensor back into the shape and dtype that ``compress`` was given."""
        raise NotImplementedError


_QUANTIZED_OPS = (ReduceOp.SUM, ReduceOp.AVERAGE)

CompressorLike: TypeAlias = type[Compressor] | Compressor
"""A compression, as users give it."""


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Sends floating-point tensors in another dtype; others stay as they are.

    Attributes:
        sent_dtype: the framework's dtype on the wire.
    """

    sent_dtype: ClassVar[Any]

    @staticmethod
    def is_float(tensor: Any) -> bool:
        """Whether the tensor has a floating-point dtype."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Returns the tensor in another dtype."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor in the dtype on the wire, and its own dtype."""
        if not cls.is_float(tensor):
            return tensor, None
        return cls.cast(tensor, cls.sent_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Returns the tensor in the dtype ``ctx``."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


class QuantizingCompressor(Compressor):
    """Lets the engine send floating-point values in 8 bits between hosts; others stay as they are.

    Inside of a host nothing is compressed. Reductions are Sum and Average, of tensors on the CPU.

    Attributes:
        format: of the values on the wire.
    """

    format: ClassVar[QuantizedFormat]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Refuse: what compresses tensors itself cannot quantize.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{cls.__name__} works in allreduce, grouped_allreduce and DistributedOptimizer, for "
            "dense tensors by Sum or Average. Here, use Compression.fp16 or Compression.none"
        )

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        return tensor


class OptimizerCompressor(Compressor):
    """A compression that keeps something from step to step, so that only an optimizer can do it."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Refuse: what compresses single tensors has no memory of earlier ones.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{cls.__name__} works in hvd.DistributedOptimizer of PyTorch only, for dense "
            "gradients: it needs the state of the optimizer. Here, use Compression.fp16 or "
            "Compression.none"
        )

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        return tensor


class Int8Compressor(QuantizingCompressor):
    """Sends whole numbers from -127 to 127, and a float32 scale for each 256 values."""

    format = QuantizedFormat.INT8


class FP8Compressor(QuantizingCompressor):
    """Sends float8_e4m3, with 3 bits of fraction, and a float32 scale for each 256 values."""

    format = QuantizedFormat.FP8_E4M3


class FP8E5M2Compressor(QuantizingCompressor):
    """Sends float8_e5m2, with 2 bits of fraction, and a float32 scale for each 256 values."""

    format = QuantizedFormat.FP8_E5M2


class AutoCompressor(QuantizingCompressor):
    """Sends 8 bits as ``int8`` does, but only between hosts whose links make that twice as fast.

    The engine of each rank decides it for a process set, by the speed of the links that was
    measured when the job started and the cost model, which are the same on all ranks, and the first
    rank of the set logs it. Tensors on GPUs and whatever else 8 bits are not for travel as they
    are.
    """

    format = QuantizedFormat.AUTO

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself: what is not for the engine to quantize stays as it is."""
        return tensor, None


def format_of(compression: CompressorLike) -> QuantizedFormat | None:
    """Return the format in which the engine quantizes; None if it does not."""
    kind = compression if isinstance(compression, type) else type(compression)
    return kind.format if issubclass(kind, QuantizingCompressor) else None


def always_quantizes(compression: CompressorLike) -> bool:
    """Return whether the engine quantizes in each job: with ``auto`` it may not.

    What a framework compiles must have room for errors before it is known whether there are any,
    and would carry them along in vain. So ``auto`` has errors in PyTorch only.
    """
    return format_of(compression) not in (None, QuantizedFormat.AUTO)


def compressed(compression: CompressorLike, tensor: Any) -> tuple[Any, Any]:
    """Return what the engine gets of a tensor, and what ``decompress`` needs to know."""
    if format_of(compression) is not None:
        return tensor, None
    return compression.compress(tensor)


def quantizing(
    reduction: Reduction, compression: CompressorLike, residuals: Sequence[Buffer] = ()
) -> Reduction:
    """Return a reduction that sends values as a compression says.

    Args:
        reduction: how values become one.
        compression: how they travel; one that does not quantize changes nothing.
        residuals: see :class:`horovod._rank.reduction.Quantized`.

    Raises:
        UsageError: the reduction is neither Sum nor Average.
    """
    wire = format_of(compression)
    if wire is None or (wire is QuantizedFormat.AUTO and reduction.op not in _QUANTIZED_OPS):
        return reduction
    check_quantizes(compression, reduction.op)
    return reduction._replace(quantized=Quantized(wire, residuals))


def check_quantizes(compression: CompressorLike, op: ReduceOp) -> None:
    """Refuse a reduction whose values cannot be quantized.

    Raises:
        UsageError: the compression always quantizes, and ``op`` is neither Sum nor Average.
    """
    if always_quantizes(compression) and op not in _QUANTIZED_OPS:
        raise UsageError(
            f"a compression to 8 bits is for op=Average and op=Sum, not for {op.name}; use "
            "Compression.none"
        )


def refuse_quantizing(compression: CompressorLike, where: str) -> None:
    """Refuse a compression that quantizes, or is one of an optimizer.

    Args:
        compression: as the user gave it.
        where: what cannot quantize, for the message.

    Raises:
        UsageError: it is one of these, and not ``Compression.auto``.
    """
    if isinstance(compression, OptimizerCompressor):
        raise UsageError(
            f"{where} cannot use {type(compression).__name__}; use Compression.fp16 or "
            "Compression.none"
        )
    if always_quantizes(compression):
        raise UsageError(
            f"{where} cannot send values in 8 bits; use Compression.fp16 or Compression.none"
        )
