"""Messages from one rank of a group to another."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.torch.distributed.call_sites import user_call_site
from horovod.torch.distributed.memory import movable, restore
from horovod.torch.tensors import memory_of, view

if TYPE_CHECKING:
    import torch

    from horovod.torch.distributed.submission import Submitter
    from horovod.torch.distributed.work import EngineWork

_TIMEOUT_OF_GROUP = timedelta(0)


def send(submitter: Submitter, tensors: list[torch.Tensor], to: int, tag: int) -> EngineWork:
    """Send a tensor to a rank of the group; ends when its memory is free.

    Args:
        submitter: of the group.
        tensors: one tensor.
        to: the group rank that receives.
        tag: a number that the receiver names, from 0 on.
    """
    source = movable(_only(tensors, "send"))
    site = user_call_site()
    handle = submitter.group.send(
        view(source), to, tag=tag, call_site=site, keep=memory_of((source,))
    )
    what = f"send to rank {to} with tag {tag}"
    return submitter.follow_message(what, site, _TIMEOUT_OF_GROUP, handle, tensors)


def receive(
    submitter: Submitter, tensors: list[torch.Tensor], source: int | None, tag: int
) -> EngineWork:
    """Receive a tensor from a rank of the group, or from the first that sends one.

    Args:
        submitter: of the group.
        tensors: one tensor, with as many elements as the sender's.
        source: the group rank that sends; None for any.
        tag: the number that the sender gives.
    """
    inner, finish = restore([_only(tensors, "recv")])
    site = user_call_site()
    handle = submitter.group.recv(
        view(inner[0]), source, tag=tag, call_site=site, keep=memory_of(inner)
    )
    what = f"recv from {'any rank' if source is None else f'rank {source}'} with tag {tag}"
    return submitter.follow_message(what, site, _TIMEOUT_OF_GROUP, handle, tensors, finish)


def _only(tensors: list[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise UsageError(f"{what} takes one tensor, not {len(tensors)}")
    return tensors[0]
