"""Python objects between ranks.

They travel by the engine alone, so eager mode, graphs and sessions make no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from horovod._train import objects
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """Returns the root's object on every rank.

    Args:
        obj: anything that cloudpickle can write; read on the root only.
        root_rank: the global rank whose object counts.
        session: not needed; accepted for older scripts.
        name: what the ranks agree on; must not be in flight twice.
        process_set: the ranks that take part.

    Returns:
        On the root the very same object, elsewhere a copy.

    Raises:
        HorovodInternalError: the root could not pickle the object, or the job failed.
    """
    return objects.broadcast_object(group_of(process_set), obj, root_rank, name, call_site())


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[T], T]:
    """Returns a function of an object that returns the root's object on every rank.

    Args:
        root_rank: the global rank whose object counts.
        session: not needed; accepted for older scripts.
        name: what the ranks agree on; must not be in flight twice.
        process_set: the ranks that take part.

    Example:
        >>> from_root = hvd.broadcast_object_fn(root_rank=0)
        >>> epoch = from_root(epoch)
    """
    agreed = name or "broadcast_object_fn"

    def send(obj: T) -> T:
        return objects.broadcast_object(group_of(process_set), obj, root_rank, agreed, call_site())

    return send


def allgather_object(
    obj: T,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[T]:
    """Returns the objects of all ranks of the set, in rank order.

    Args:
        obj: anything that cloudpickle can write; may differ in type and size between ranks.
        session: not needed; accepted for older scripts.
        name: what the ranks agree on; must not be in flight twice.
        process_set: the ranks that take part.

    Raises:
        HorovodInternalError: a rank could not pickle its object, or the job failed.
    """
    return objects.allgather_object(group_of(process_set), obj, name, call_site())
