"""Adds up gradients over several passes, each of which is a call of ``apply``."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from horovod._keras.reducer import key_of
from horovod._train.gradients import check_passes
from horovod._train.process_set import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from horovod._rank.group import Group
    from horovod._train.elastic.ledger import Share
    from horovod.torch.keras.reducer import TorchReducer

_logger = logging.getLogger(__name__)


class LocalAggregation:
    """Communicates and steps in every n-th pass only.

    The passes of a step belong to one job: in a new one, whose newcomers have no sums, all ranks
    begin with the first pass.

    Args:
        passes: n, at least 1.
        is_mean: divide the reduced sums by n.
        reducer: reduces the sums.
    """

    def __init__(self, passes: int, is_mean: bool, reducer: TorchReducer) -> None:
        self._passes = check_passes(passes)
        self._is_mean = is_mean
        self._reducer = reducer
        self._group: weakref.ref[Group] | None = None
        self._sums: dict[Hashable, torch.Tensor] = {}
        self._count = 0

    def is_between_passes(self, optimizer: Any) -> bool:
        """Whether gradients have been added up that are not reduced yet."""
        return self._count > 0

    def step(
        self,
        optimizer: Any,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Adds gradients to the sums; in the n-th pass, reduces these and takes the step.

        Args:
            optimizer: its ``iterations`` are raised if the step is not taken.
            apply: takes the step of the plain optimizer.
            gradients: of this pass; a missing one counts as zero if another pass has one.
            variables: to which they belong.

        Raises:
            UsageError: a gradient is sparse, and ``sparse_as_dense`` is False.
            HorovodInternalError: the job failed.
        """
        self._begin_in(group_of(self._reducer.settings.process_set))
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                self._add(key_of(variable), self._reducer.dense(gradient, variable))
        self._count += 1
        if self._count < self._passes:
            optimizer.iterations.assign_add(1)
            return
        sums = [self._sums.get(key_of(variable)) for variable in variables]
        self._sums, self._count = {}, 0
        reduced = self._reducer.reduce(sums, variables)
        if self._is_mean:
            reduced = [None if each is None else each / self._passes for each in reduced]
        apply(reduced, variables)

    def _add(self, key: Hashable, gradient: torch.Tensor) -> None:
        known = self._sums.get(key)
        if known is None:
            # The next backward pass may write into the memory of the gradient.
            self._sums[key] = gradient.detach().clone()
        else:
            known += gradient.detach()

    def _begin_in(self, group: Group) -> None:
        """Forget the passes of an earlier job."""
        if self._group is not None and self._group() is group:
            return
        if self._count:
            _logger.warning(
                "%s: the job has changed after %d of %d passes of a step; their gradients are "
                "dropped, and the step begins again",
                self._reducer.settings.name, self._count, self._passes,
            )  # fmt: skip
        self._group, self._sums, self._count = weakref.ref(group), {}, 0


class StepAggregation:
    """Communicates and steps with the last pass of a step, by the mean over all its samples.

    An elastic training says which pass it is. In the others the optimizer's ``iterations`` stay,
    and with them schedules of its rate.

    Args:
        reducer: reduces the means over this rank's samples, weighed by their number.
    """

    def __init__(self, reducer: TorchReducer) -> None:
        reducer.stay_until_apply()
        self._reducer = reducer
        self._share: Share | None = None
        self._sums: dict[Hashable, torch.Tensor] = {}

    def begin(self, share: Share | None) -> None:
        """Begin a pass.

        Args:
            share: this rank's samples in it; None where a batch is a step, as ever.
        """
        self._share = share
        if share is None or share.number == 0:
            self._sums.clear()  # of a step that was not finished

    def is_between_passes(self, optimizer: Any) -> bool:
        """Whether gradients have been added up that are not reduced yet."""
        return bool(self._sums)

    def step(
        self,
        optimizer: Any,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Adds gradients to the sums; in the last pass, reduces these and takes the step.

        Args:
            optimizer: unused.
            apply: takes the step of the plain optimizer.
            gradients: of this pass; a missing one counts as zero if another pass has one.
            variables: to which they belong.

        Raises:
            UsageError: a gradient is sparse, and ``sparse_as_dense`` is False.
            HorovodInternalError: the job failed.
        """
        share = self._share
        if share is None or share.passes == 1:
            apply(self._reducer.reduce(gradients, variables), variables)
            return
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None and share.samples:  # what does not count may be infinite
                part = self._reducer.dense(gradient, variable).detach()
                part = part * (share.samples / share.of_step)
                before = self._sums.get(key_of(variable))
                self._sums[key_of(variable)] = part if before is None else before + part
        if share.ends_step:
            sums = [self._sums.get(key_of(variable)) for variable in variables]
            self._sums.clear()
            apply(self._reducer.reduce(sums, variables), variables)
