"""What the shared code for Keras needs of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.keras3_seam import Keras3Seam
from horovod._keras.optimizer_keras3 import ReducingOptimizer3
from horovod.torch.keras import local_steps
from horovod.torch.keras.aggregation import LocalAggregation
from horovod.torch.keras.reducer import TorchReducer
from horovod.torch.keras.shares import begin_sharding

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._keras.reducing_optimizer import Wrapping


class TorchSeam(Keras3Seam):
    """Keras on PyTorch, whose variables hold parameters with gradients."""

    backend = "torch"
    optimizer_class = ReducingOptimizer3

    @property
    def begin(self) -> Callable[[Any], tuple[Any, Any]]:
        return begin

    @property
    def begin_sharding(self) -> Callable[[Any], tuple[Any, Any]]:
        return begin_sharding

    @property
    def begin_local_steps(self) -> Callable[[Any], tuple[Any, Any]]:
        return local_steps.begin


def begin(wrapping: Wrapping) -> tuple[TorchReducer, LocalAggregation | None]:
    """Make the reducer of an optimizer, and what adds its gradients up over several passes."""
    reducer = TorchReducer(wrapping.settings, overlaps=wrapping.passes == 1)
    if wrapping.passes == 1:
        return reducer, None
    return reducer, LocalAggregation(
        wrapping.passes, wrapping.average_aggregated_gradients, reducer
    )


SEAM = TorchSeam()
