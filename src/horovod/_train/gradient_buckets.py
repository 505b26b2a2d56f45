"""Buckets of gradients in shared memory: what lies in them, and how they get there."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from horovod._native import private_array
from horovod._train.bucket_plan import PlannedBucket, Sized, plan_buckets
from horovod.errors import HorovodInternalError, MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horovod._native import Handle, NativeArray
    from horovod._rank.group import Group

P = TypeVar("P", bound=Hashable)
P_co = TypeVar("P_co", covariant=True)
B = TypeVar("B", bound="MovingBucket[Any]")

_NAMES_SHOWN = 4


class MovingBucket(Protocol[P_co]):
    """Gradients that are reduced as one array."""

    @property
    def params(self) -> tuple[P_co, ...]:
        """The parameters of these gradients."""

    def move(self, memory: NativeArray) -> None:
        """Takes its place in the memory of all buckets; nothing is in flight."""

    def come_back(self) -> None:
        """Returns to that memory, if it had to leave it for a while; nothing is in flight."""


class GradientBuckets(Generic[P, B]):
    """The buckets of one optimizer in one job.

    They begin in ordinary memory and move into shared memory when all ranks have asked for it. A
    rank that has joined asks for it when it is back; until then the others try again at each step.

    Args:
        group: of all ranks.
        buckets: what lies in each; the same on all ranks.
        num_bytes: of all of them.
        name: of the memory, on which the ranks agree.
        call_site: where the optimizer was made, for messages.
    """

    def __init__(
        self,
        group: Group,
        buckets: Sequence[B],
        num_bytes: int,
        name: str,
        call_site: str,
    ) -> None:
        self._buckets = buckets
        self._bucket_of = {param: bucket for bucket in buckets for param in bucket.params}
        self._num_bytes = num_bytes
        self._request = partial(group.share_memory, self._num_bytes, name=name, call_site=call_site)
        self._pending: Handle | None = self._request() if buckets else None
        if buckets:
            self._move(private_array(self._num_bytes))

    def of(self, param: P) -> B | None:
        """The bucket that holds the gradient of a parameter."""
        return self._bucket_of.get(param)

    @property
    def groups(self) -> list[tuple[P, ...]]:
        """Parameters that leave together."""
        return [bucket.params for bucket in self._buckets]

    def follow_memory(self) -> None:
        """Moves into shared memory if that is there now; to be called when nothing is in flight."""
        for bucket in self._buckets:
            bucket.come_back()
        if self._pending is None or not self._pending.done():
            return
        handle, self._pending = self._pending, None
        try:
            handle.wait()
            self._move(handle.results()[0])
        except MismatchError:  # a rank has joined
            with suppress(HorovodInternalError):
                self._pending = self._request()
        except HorovodInternalError:
            return  # the next reduction tells why

    def _move(self, memory: NativeArray) -> None:
        for bucket in self._buckets:
            bucket.move(memory)


def plan_gradient_buckets(
    order: Sequence[P], groups: Iterable[Sequence[P]], extent: Callable[[P], tuple[str, int]]
) -> list[PlannedBucket[P]]:
    """Which gradients lie in which bucket.

    Args:
        order: the parameters, as their gradients become ready.
        groups: of several parameters that the user wants to be reduced as one operation. Each has a
            bucket of its own, and so has every other parameter then. One that cannot live in a
            bucket as a whole is left out.
        extent: dtype and bytes of a gradient.
    """
    grouped = {param: tuple(group) for group in groups for param in group}
    wanted = set(order)
    units: dict[tuple[P, ...], Sized[P]] = {}
    for param in order:
        unit = grouped.get(param, (param,))
        extents = [extent(member) for member in unit] if wanted.issuperset(unit) else []
        if len({dtype for dtype, _ in extents}) == 1:
            units.pop(unit, None)  # a group is ready when its last gradient is
            units[unit] = Sized(unit, tuple(size for _, size in extents), extents[0][0])
    if grouped:
        return plan_buckets(list(units.values()), 0, 0)
    return plan_buckets(list(units.values()))


def name_of(names: Sequence[str]) -> str:
    """Says what lies in a bucket; a long list is cut."""
    if len(names) <= _NAMES_SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMES_SHOWN])} and {len(names) - _NAMES_SHOWN} more"
