"""What a compression of gradients is made of, whatever the framework."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias


class Compressor:
    """What a compression is made of; derive from it to supply your own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to reduce (dense) and what ``decompress`` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Turns the reduced tensor back into the shape and dtype that ``compress`` was given."""
        raise NotImplementedError


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
