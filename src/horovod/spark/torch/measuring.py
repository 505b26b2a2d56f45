"""Loss and metrics of an epoch, over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from horovod.spark.torch.losses import OfLabels
from horovod.spark.torch.shaping import one_for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Measured = dict[str, Any]
    """The mean ``loss``, and ``all_metrics``."""


class Measuring:
    """Adds up loss and metrics over the batches of an epoch.

    Args:
        groups: lists of functions of output and label; one function for all labels, or one for
            each.
        labels: their names.
        before: what :meth:`gather` returned of batches before the first; None if there are none.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Callable[..., Any]]],
        labels: Sequence[str],
        before: torch.Tensor | None = None,
    ) -> None:
        self._groups = [
            [
                OfLabels(each)
                for each in one_for_each(list(group), len(labels), f"group {index} of metrics")
            ]
            for index, group in enumerate(groups)
        ]
        self._labels = labels
        # The loss, then the metrics group by group, then the rows they stand for.
        self._sums = torch.zeros(2 + len(groups) * len(labels), dtype=torch.float64)
        # Of all ranks, before this one has begun to add.
        self._before = torch.zeros_like(self._sums) if before is None else before

    @torch.no_grad()
    def add(
        self,
        loss: torch.Tensor,
        outputs: Sequence[torch.Tensor],
        labels: Sequence[torch.Tensor],
        rows: int,
    ) -> None:
        """Adds a batch, which counts by its rows."""
        values = [float(loss)]
        for group in self._groups:
            values += [float(fn(*each)) for fn, *each in zip(group, outputs, labels, strict=False)]
        self._sums += torch.tensor([*values, 1.0], dtype=torch.float64) * rows

    def loss_here(self) -> float:
        """The mean loss on this rank so far."""
        return float(self._sums[0] / self._sums[-1])

    def gather(self, name: str) -> torch.Tensor:
        """The sums over all batches of all ranks so far; collective.

        Args:
            name: of the operation.
        """
        self._before = self._before + hvd.allreduce(self._sums, op=hvd.Sum, name=name)
        self._sums = torch.zeros_like(self._sums)
        return self._before

    def over_all_ranks(self, name: str) -> Measured:
        """The means; collective.

        Args:
            name: of the operation.

        Returns:
            ``loss``, and ``all_metrics``: for each group ``group_<index>_<label>`` and a value.
        """
        sums = self.gather(name)
        loss, *metrics = (sums[:-1] / sums[-1]).tolist()
        count = len(self._labels)
        return {
            "loss": loss,
            "all_metrics": [
                {
                    f"group_{index}_{label}": metrics[index * count + place]
                    for place, label in enumerate(self._labels)
                }
                for index in range(len(self._groups))
            ],
        }


def in_words(measured: Measured) -> str:
    """Format the measures of an epoch: ``loss 0.25, group_0_y 0.5``."""
    values = {"loss": measured["loss"]}
    for group in measured["all_metrics"]:
        values.update(group)
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
