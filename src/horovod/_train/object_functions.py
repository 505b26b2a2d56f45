"""Python objects between ranks, as the interface of every adapter has them."""

from __future__ import annotations

from typing import TypeVar

from horovod._train import objects
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of

__all__ = ["allgather_object", "broadcast_object"]

T = TypeVar("T")


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """Returns the root's object on every rank.

    Args:
        obj: anything that cloudpickle can write; read on the root only.
        root_rank: the global rank whose object counts.
        name: what the ranks agree on; must not be in flight twice.
        process_set: the ranks that take part.

    Returns:
        On the root the very same object, elsewhere a copy.

    Raises:
        HorovodInternalError: the root could not pickle the object, or the job failed.
        UsageError: with JAX, the call is part of a jitted program.
    """
    return objects.broadcast_object(group_of(process_set), obj, root_rank, name, call_site())


def allgather_object(
    obj: T, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """Returns the objects of all ranks in rank order.

    Args:
        obj: anything that cloudpickle can write; may differ in type and size between ranks.
        name: what the ranks agree on; must not be in flight twice.
        process_set: the ranks that take part.

    Raises:
        HorovodInternalError: a rank could not pickle its object, or the job failed.
        UsageError: with JAX, the call is part of a jitted program.
    """
    return objects.allgather_object(group_of(process_set), obj, name, call_site())
