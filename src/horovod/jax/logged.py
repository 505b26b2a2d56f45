"""Arrays of JAX as values of ``hvd.log``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from horovod._train.logged.call import accept_values, check_one_element
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def take(name: str, value: Any) -> float | Callable[[], float] | None:
    """Return what waits for the number in an array; None for what is no array."""
    if isinstance(value, jax.core.Tracer):
        raise UsageError(
            f"hvd.log: {name} has no value while JAX traces a function; return it from the "
            "function, and log it outside of jit and grad"
        )
    if not isinstance(value, jax.Array):
        return None
    check_one_element(name, value.size, value.shape)
    if np.issubdtype(value.dtype, np.complexfloating):
        raise UsageError(f"hvd.log: {name} is complex: log its real part, or its magnitude")
    local = value if value.is_fully_addressable else value.addressable_data(0)
    local.copy_to_host_async()
    return lambda: float(np.asarray(local).item())


accept_values(take)
