"""Finds replicas that have diverged by samples while training."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horovod._train.numbering import NameNumbers
from horovod._train.process_set import group_of
from horovod._train.sync_check import PendingCheck, fingerprints_of
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horovod._rank.group import Group
    from horovod._train.process_set import ProcessSet
    from horovod._train.sync_check import Array

P = TypeVar("P", bound=Hashable)

# A third of a millisecond to read, on a processor with SHA instructions.
SAMPLE_BYTES = 512 * 1024

_numbers = NameNumbers()


class SampledSyncCheck(ABC, Generic[P]):
    """Compares a small part of the parameters between the ranks every few steps of an optimizer.

    The part moves on with each comparison, until all has been compared and it begins anew. The
    verdict on one part is read when the next one is sent, so that no rank waits for it.

    Args:
        process_set: the ranks that compare.
        names: of the parameters.
        num_steps: steps between two comparisons; 0 turns them off.
        sample_bytes: the most that is read for one comparison.
    """

    def __init__(
        self,
        process_set: ProcessSet,
        names: Mapping[P, str],
        num_steps: int,
        sample_bytes: int = SAMPLE_BYTES,
    ) -> None:
        self._process_set = process_set
        self._names = names
        self._num_steps = num_steps
        self._sample_bytes = sample_bytes
        self._name = ""
        self._group: Group | None = None
        self._steps = itertools.count(1)
        self._pending: PendingCheck | None = None

    @abstractmethod
    def num_bytes(self, param: P) -> int:
        """The size of a parameter."""

    @abstractmethod
    def array(self, name: str, param: P, part: slice) -> Array:
        """Some bytes of a parameter.

        Args:
            name: of the parameter.
            param: the parameter.
            part: from its first byte.
        """

    def after_step(self, param_groups: Iterable[Mapping[str, Any]]) -> None:
        """Counts a step; when it is time, judges the last sample and sends the next.

        Args:
            param_groups: those of the optimizer, after its step.

        Raises:
            ReplicasDivergedError: on all ranks, if the last sample was not the same everywhere.
        """
        if not self._num_steps:
            return
        group = self._bind()
        step = next(self._steps)
        if step % self._num_steps or not group.is_member or group.size == 1:
            return
        self._judge()
        params = [param for options in param_groups for param in options["params"]]
        sample = fingerprints_of(self._sample(params, step // self._num_steps - 1))
        # A rank whose last step this was may have left: there is nothing to compare any more. What
        # else can go wrong here, the next gradient meets, too.
        with suppress(HorovodInternalError):
            self._pending = PendingCheck(group, sample, self._name)

    def _bind(self) -> Group:
        """The group in use; counting begins anew in a new job, as newcomers begin then."""
        group = group_of(self._process_set)
        if group is not self._group:
            self._group = group
            self._pending = None
            self._steps = itertools.count(1)
            self._name = f"sync_check.{_numbers.number_for(['sync_check'], group)}"
        return group

    def _judge(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.wait()
        except HorovodInternalError:
            # A rank that has joined compares nothing. Whatever else went wrong, the next gradient
            # meets it too.
            return
        pending.finish()

    def _sample(self, params: Iterable[P], index: int) -> Iterator[Array]:
        """The bytes of one window over all parameters; alike on all ranks by its index."""
        sizes = [(param, self.num_bytes(param)) for param in params]
        num_bytes = sum(size for _, size in sizes)
        num_windows = max(1, -(-num_bytes // self._sample_bytes))
        begin = index % num_windows * self._sample_bytes
        end = begin + self._sample_bytes
        first = 0
        for param, size in sizes:
            part = slice(max(begin - first, 0), min(end - first, size))
            if part.start < part.stop:
                yield self.array(self._names[param], param, part)
            first += size
