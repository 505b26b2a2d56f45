"""The exchange of parts with Keras on PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod._keras.sharding.exchange import GroupedExchange
from horovod._keras.sharding.optimizer import ShardReducer
from horovod.torch import exchanges, reductions
from horovod.torch.keras.reducer import TorchReducer

if TYPE_CHECKING:
    from horovod._keras.reducing_optimizer import Wrapping


class _Operations:
    """The collectives of PyTorch, of which no derivatives are taken."""

    reshape = staticmethod(torch.reshape)

    @staticmethod
    @torch.no_grad()
    def grouped_reducescatter(tensors: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
        return reductions.grouped_reducescatter([each.detach() for each in tensors], **options)

    @staticmethod
    @torch.no_grad()
    def grouped_allgather(tensors: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
        return exchanges.grouped_allgather([each.detach() for each in tensors], **options)

    @staticmethod
    @torch.no_grad()
    def allreduce(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        return reductions.allreduce(tensor, **options)


def begin_sharding(wrapping: Wrapping) -> tuple[ShardReducer, None]:
    """Make what exchanges the parts of an optimizer."""
    reducer = TorchReducer(wrapping.settings, overlaps=False)
    exchange = GroupedExchange(_Operations, wrapping.settings, reducer.prefix, reducer.dense)
    return ShardReducer(exchange, wrapping.settings), None
