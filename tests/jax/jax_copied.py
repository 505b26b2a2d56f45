"""The way of arrays on a GPU, for those on the CPU."""

from __future__ import annotations

from horovod.jax import primitives
from horovod.jax.devices import TransferMode


def copy_all_arrays() -> None:
    """From now on collectives work on copies, within programs and outside of them."""
    primitives.transfer_mode_on = lambda platform: TransferMode.HOST_COPY  # type: ignore[attr-defined]
    primitives.lower_on("cpu", TransferMode.HOST_COPY)
