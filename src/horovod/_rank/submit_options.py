"""The options that collectives of a :class:`horovod._rank.group.Group` take by keyword."""

from __future__ import annotations

from typing import TypedDict


class SubmitOptions(TypedDict, total=False):
    """The options that every collective takes.

    Attributes:
        name: what the ranks agree on; None counts up, so ranks must then submit in the same order.
        prefix: the first word of the name on the wire, ``<prefix>.<name>``.
        waits_next: the caller waits at once, so that no other thread needs to be woken.
        call_site: ``file:line`` of the caller, for messages.
        keep: an object, for example the tensors, to reference until the operation is done.
    """

    name: str | None
    prefix: str
    waits_next: bool
    call_site: str
    keep: object


class PrioritizedOptions(SubmitOptions, total=False):
    """The options of all collectives but allreduce, whose :class:`Reduction` has the priority.

    Attributes:
        priority: operations with a higher number overtake others; 0 if it is not given.
    """

    priority: int
