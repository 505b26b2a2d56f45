"""Reduces what an optimizer's step has changed, instead of the gradients that it steps by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod._rank.reduction import ReduceOp, Reduction
from horovod._train.optimizer_options import reduces
from horovod._train.parameter_names import NameSuffix
from horovod._train.process_set import check_usable, group_of
from horovod._train.waiting import wait_for_all
from horovod.errors import UsageError
from horovod.torch.calls import AllreduceCall
from horovod.torch.devices import hand_over
from horovod.torch.tensors import dense

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._train.gradient_reducer import ReducerSettings
    from horovod._train.weights import WeightSource

Snapshot = list[tuple[torch.Tensor, torch.Tensor]]


class DeltaReducer:
    """Combines the steps that all ranks have taken by their own gradients.

    Args:
        settings: how to reduce; the operation is Adasum.
        names: of all parameters of the optimizer.
        passes: backward passes per step.

    Attributes:
        reduced: whether the ranks have agreed on an overflow in this step.
        names: as given.
        passes: as given; gradients add up by themselves, so nothing has to be counted.
    """

    def __init__(
        self, settings: ReducerSettings, names: dict[torch.Tensor, str], passes: int
    ) -> None:
        self.reduced = False
        self.names = names
        self.passes = passes
        self._settings = settings
        self._ever_trained: set[torch.Tensor] = set()
        self._suffix = NameSuffix(names.values())
        check_usable(settings.process_set)
        self._first_name = min(names.values())

    def reduce(self, params: Iterable[torch.Tensor]) -> None:
        """Spreads an overflow of one rank's gradients to all, so that GradScaler skips everywhere.

        Args:
            params: all parameters of the optimizer.

        Raises:
            HorovodInternalError: the job failed.
        """
        self.reduced = True
        group = group_of(self._settings.process_set)
        if not reduces(group):
            return
        gradients = [param.grad for param in params if param.grad is not None]
        overflow = not all(bool(_values(g).isfinite().all()) for g in gradients)
        call = AllreduceCall(
            group, f"{self._first_name}.overflow{self._suffix.within(group)}", "allreduce",
            self._settings.call_site, Reduction(ReduceOp.MAX),
        )  # fmt: skip
        (anywhere,) = call.run((torch.tensor([overflow], dtype=torch.uint8, device="cpu"),))
        if bool(anywhere) and not overflow and gradients:
            with torch.no_grad():
                _values(gradients[0]).mul_(float("nan"))

    def snapshot(self, params: Iterable[torch.Tensor]) -> Snapshot:
        """Copies the parameters whose changes will be exchanged; none on a single rank.

        Args:
            params: all parameters of the optimizer.
        """
        if not reduces(group_of(self._settings.process_set)):
            return []
        # Those frozen meanwhile count too, as not all ranks may have frozen them.
        chosen = [param for param in params if param.requires_grad or param in self._ever_trained]
        self._ever_trained.update(chosen)
        return [(param, param.detach().clone()) for param in chosen]

    def exchange(self, before: Snapshot) -> None:
        """Replaces this rank's changes of the parameters by the combined ones.

        Args:
            before: what :meth:`snapshot` returned before the step.

        Raises:
            HorovodInternalError: a reduction failed; parameters hold this rank's own step.
        """
        sent = [self._send(param, old) for param, old in before]
        wait_for_all(handle for handle, _, _ in sent)
        for handle, wire, _ in sent:
            hand_over(handle, wire)
        compression = self._settings.compression
        with torch.no_grad():
            for (param, old), (_, wire, context) in zip(before, sent, strict=True):
                param.copy_(old.add_(compression.decompress(wire, context)))

    def _send(self, param: torch.Tensor, old: torch.Tensor) -> tuple[Any, torch.Tensor, Any]:
        settings = self._settings
        compressed, context = settings.compression.compress(param.detach() - old)
        wires: Sequence[torch.Tensor] = (dense(compressed),)
        group = group_of(settings.process_set)
        name = self.names[param] + self._suffix.within(group)
        call = AllreduceCall(group, name, "allreduce", settings.call_site, Reduction(settings.op))
        return call.submit(wires, wires), wires[0], context

    def discard(self, params: Iterable[torch.Tensor]) -> None:
        """Begins a new step; nothing is ever in flight between two steps."""
        self.reduced = False

    def abandon(self) -> None:
        """Forgets this step."""
        self.reduced = False

    def set_passes(self, passes: int) -> None:
        """Changes the backward passes per step."""
        self.passes = passes

    def set_weight(self, weight: WeightSource) -> None:
        """Refuses a weight, as Adasum has none.

        Raises:
            UsageError: always.
        """
        raise UsageError("weight needs op=Average, not ADASUM")


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient if gradient.layout is torch.strided else gradient._values()
