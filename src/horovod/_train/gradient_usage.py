"""Find parameters that no rank has used in a step, to leave their gradients as they are.

A rank cannot know whether others have used a parameter that it has not. So each step has a small
operation that tells. It leaves together with the last gradient, and runs beside the reductions.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from horovod._native import Buffer
from horovod._rank.reduction import ReduceOp, Reduction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._native import Handle
    from horovod._rank.group import Group

P = TypeVar("P", bound=Hashable)


class GradientUsage(Generic[P]):
    """Records which parameters of one optimizer the ranks have used in one job.

    Args:
        group: the ranks that take part.
        call_site: where the optimizer was made, for messages.
    """

    def __init__(self, group: Group, call_site: str) -> None:
        self._group = group
        self._call_site = call_site
        self._order: list[P] = []
        self._flags = array("B")
        self._unused: frozenset[P] | None = None
        self._handle: Handle | None = None

    def begin_step(self) -> None:
        """Forgets what was told in the step that ended."""
        self._handle = None
        self._unused = None

    @property
    def is_told(self) -> bool:
        """Whether this rank has told what it has used in this step."""
        return self._handle is not None

    def tell(self, name: str, names: Mapping[P, str], used: Sequence[P]) -> None:
        """Says what this rank has used in a step; all ranks must call, none waits.

        Args:
            name: what the ranks agree on.
            names: of all parameters, the same on all ranks.
            used: those that this rank has a gradient of, each once.

        Raises:
            HorovodInternalError: the job failed.
        """
        if len(self._order) != len(names):
            self._order = sorted(names, key=names.__getitem__)
        if len(used) == len(names):
            flags = array("B", bytes((1,)) * len(names))
        else:
            chosen = set(used)
            flags = array("B", [param in chosen for param in self._order])
        self._flags = flags
        buffer = (Buffer(flags.buffer_info()[0], "uint8", (len(flags),)),)
        self._handle = self._group.allreduce(
            buffer,
            buffer,
            Reduction(ReduceOp.MAX),
            name=name,
            call_site=self._call_site,
            keep=flags,
        )

    def wait(self) -> None:
        """Waits until all ranks have told, if this one has.

        Raises:
            HorovodInternalError: the job failed.
        """
        if self._handle is not None:
            self._handle.wait()

    def unused(self) -> frozenset[P]:
        """Return the parameters that no rank used in this step, after all have reported.

        Empty if this rank has not told.

        Raises:
            HorovodInternalError: the job failed.
        """
        if self._handle is None:
            return frozenset()
        if self._unused is None:
            self._handle.wait()
            flags = zip(self._order, self._flags, strict=True)
            self._unused = frozenset(param for param, used in flags if not used)
        return self._unused
