"""``hvd.shard`` with batches of tensors."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from torch.utils.data import default_collate, default_convert

from horovod._train.shard import api

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._train.shard.shard import Shard

__all__ = ["shard"]

P = ParamSpec("P")


def _with_tensors(function: Callable[P, Shard]) -> Callable[P, Shard]:
    @wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def shard(*args: P.args, **kwargs: P.kwargs) -> Shard:
        made = function(*args, **kwargs)
        made.make_batches_by(default_collate, default_convert)
        return made

    return shard


shard = _with_tensors(api.shard)
