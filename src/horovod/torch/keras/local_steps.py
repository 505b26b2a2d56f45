"""Local steps with Keras on PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import torch

from horovod._keras.local_steps.backend import LocalStepsBackend
from horovod._keras.local_steps.outer_steps import OuterSteps
from horovod._rank.reduction import ReduceOp
from horovod._train import sync_check
from horovod._train.process_set import group_of
from horovod.errors import ReplicasDivergedError
from horovod.torch.reductions import grouped_allreduce
from horovod.torch.sync_check import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from horovod._keras.reducing_optimizer import Wrapping


class TorchLocalSteps(LocalStepsBackend):
    """Exchanges as Python comes to them: there are no compiled steps."""

    def run_if(self, condition: Any, change: Callable[[], None], touched: Sequence[Any]) -> None:
        """Change variables if a condition is true."""
        if bool(condition):
            with torch.no_grad():
                change()

    def counting(self) -> AbstractContextManager[object]:
        """Keep counters on the CPU, so that no step waits for the GPU to know them."""
        return keras.device("cpu")  # type: ignore[no-any-return]

    def average(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Return the averages over the ranks; collective."""
        settings = self.settings
        return grouped_allreduce(
            [tensor.detach() for tensor in tensors], op=ReduceOp.AVERAGE, name=name,
            compression=settings.compression, process_set=settings.process_set,
        )  # fmt: skip

    def compare(self, tensors: Sequence[Any], names: Sequence[str], name: str, what: str) -> Any:
        """Compare tensors between the ranks; collective."""
        group = group_of(self.settings.process_set)
        arrays = [array_of(each, t.detach()) for each, t in zip(names, tensors, strict=True)]
        try:
            sync_check.check_in_sync(group, arrays, self.settings.call_site)
        except ReplicasDivergedError as error:
            raise ReplicasDivergedError(
                f"{what}{error.message}", error.tensors, error.ranks
            ) from None
        return 0


def begin(wrapping: Wrapping) -> tuple[OuterSteps, None]:
    """Make what brings the ranks of an optimizer together."""
    return OuterSteps(TorchLocalSteps(wrapping.settings)), None
