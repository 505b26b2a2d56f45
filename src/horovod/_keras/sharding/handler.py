"""The optimizer of an elastic state, of whose state each rank has its share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._keras.host_values import send
from horovod._rank import context
from horovod._train.elastic.checkpoint.data import Lent
from horovod._train.elastic.handlers import StateHandler
from horovod._train.objects import broadcast_object

if TYPE_CHECKING:
    from horovod._keras.sharding.optimizer import ShardingOptimizer

_NAME = "elastic.shares"


class ShardingHandler(StateHandler):
    """Keeps the whole state in host memory, so that any ranks may be lost.

    Args:
        value: the optimizer, built.
    """

    value: ShardingOptimizer

    def __init__(self, value: ShardingOptimizer) -> None:
        super().__init__(value)
        self._saved: list[np.ndarray] | None = None
        # What the parts of all ranks together are now; None while that is unknown.
        self._now: list[np.ndarray] | None = None

    def prepare(self) -> None:
        self._now = [np.array(each) for each in self.value.gather()]

    def save(self) -> None:
        if self._now is not None:  # at first, no other rank is there to gather from
            self._saved, self._now = self._now, None

    def restore(self) -> None:
        self._now = self._saved
        if self._saved is not None:
            self.value.divide(self._saved)

    def reset(self) -> None:
        self.value.fit_to_job()
        if self._now is not None:
            self.value.divide(self._now)

    def sync(self) -> None:
        group = context.global_group()
        if not broadcast_object(group, self._now is not None, self.root, f"{_NAME}.is_known"):
            self.prepare()
        values = self._now
        if values is None or context.rank() != self.root:
            # Not over the snapshot: the root may be lost before all of it has arrived.
            values = self.value.whole_zeros()
        send(list(self.value.variables), values, self.root, _NAME)
        self.value.divide(values)
        self._now = values

    def snapshot(self) -> Any:
        return Lent(self._saved or [])

    def load(self, snapshot: Any) -> None:
        self.value.divide(snapshot)
        self._saved = self._now = [np.array(each) for each in snapshot]
