"""Names for what JAX takes and gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    import numpy as np

PyTree: TypeAlias = Any  # JAX has no type for containers of arrays
Arrays: TypeAlias = "list[jax.Array | np.ndarray]"  # of NumPy where JAX lacks the dtype now
Scalar: TypeAlias = "jax.typing.ArrayLike"  # which may be known only when a program runs
Groups: TypeAlias = "int | PyTree | None"  # a number of operations, or a tree of labels
