"""Arrays of MXNet as values of ``hvd.log``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from horovod._train.logged.call import accept_values, check_one_element

if TYPE_CHECKING:
    from collections.abc import Callable


def take(name: str, value: Any) -> float | Callable[[], float] | None:
    """Return what waits for the number in an array; None for what is no array."""
    if not isinstance(value, mx.nd.NDArray):
        return None
    check_one_element(name, value.size, value.shape)
    # The program may write into the array meanwhile.
    kept = value.copy()
    return lambda: float(kept.asnumpy().item())


accept_values(take)
