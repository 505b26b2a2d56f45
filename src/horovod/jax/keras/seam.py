"""What the shared code for Keras needs of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.keras3_seam import Keras3Seam
from horovod.jax.keras import local_steps
from horovod.jax.keras.optimizer import JaxReducingOptimizer, begin
from horovod.jax.keras.shares import begin_sharding

if TYPE_CHECKING:
    from collections.abc import Callable


class JaxSeam(Keras3Seam):
    """Keras on JAX, whose ``fit`` holds the values of variables outside of these."""

    backend = "jax"
    optimizer_class = JaxReducingOptimizer

    @property
    def begin(self) -> Callable[[Any], tuple[Any, Any]]:
        return begin

    @property
    def begin_sharding(self) -> Callable[[Any], tuple[Any, Any]]:
        return begin_sharding

    @property
    def begin_local_steps(self) -> Callable[[Any], tuple[Any, Any]]:
        return local_steps.begin

    def fetch_state(self, model: Any) -> None:
        # Keras offers this to callbacks; the next step reads the variables again.
        synchronize = getattr(model, "jax_state_sync", None)
        if synchronize is not None and hasattr(model, "_jax_state_synced"):
            synchronize()

    def abandon_state(self, model: Any) -> None:
        if getattr(model, "_jax_state", None) is not None:
            model._jax_state = None
            model._jax_state_synced = True


SEAM = JaxSeam()
