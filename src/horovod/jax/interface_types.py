"""Names for what JAX takes and gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    import numpy as np

PyTree: TypeAlias = Any
"""Containers of containers with arrays at their leaves; JAX has no type for them."""

Arrays: TypeAlias = "list[jax.Array | np.ndarray]"
"""Leaves of a tree; of NumPy where JAX has no such dtype now."""

Scalar: TypeAlias = "float | jax.Array"
"""A number, which may be known only when a program runs."""

Groups: TypeAlias = "int | PyTree | None"
"""How many operations, or a tree of labels; None for one operation."""
