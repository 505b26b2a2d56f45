"""Which gradients are sparse and how they travel, agreed between the ranks.

A gradient's layout shows only when it is there, and some ranks may have none: they could not know
which operation the others run. So each rank tells what its parameters' gradients look like after
the first backward pass, once; parameters that had a gradient nowhere are asked about again.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from horovod._native import Buffer
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from horovod._native import Handle, NativeArray
    from horovod._rank.group import Group

P = TypeVar("P", bound=Hashable)
P_contra = TypeVar("P_contra", contravariant=True)

_NO_PLACE = -1
_NUMBERS = 4  # of a report: layout, sparse dimensions, bytes of elements, place


class Kind(IntEnum):
    """The kind of gradient that a rank has."""

    NONE = 0
    SPARSE = 1
    DENSE = 2


class Gradients(Protocol[P_contra]):
    """An adapter's view of this rank's gradients."""

    def kind(self, param: P_contra) -> Kind:
        """Return the kind of the current gradient of a parameter."""

    def sparse_extent(self, param: P_contra) -> tuple[int, int]:
        """Return a sparse gradient's number of sparse dimensions, and the bytes of its elements."""

    def dense_bytes(self, param: P_contra) -> int:
        """The bytes of the whole gradient of a parameter."""


@dataclass(frozen=True)
class GradientLayout:
    """The layout of a parameter's gradient, known to all ranks.

    Attributes:
        sparse_dim: its number of sparse dimensions where it is sparse; 0 if it is dense on a rank.
        travels_sparse: whether its elements are exchanged instead of the whole.
    """

    sparse_dim: int
    travels_sparse: bool


DENSE = GradientLayout(0, False)


def decide_layout(
    reports: Sequence[Sequence[int]], dense_bytes: int, may_travel_sparse: bool
) -> GradientLayout | None:
    """Decide how a gradient travels, from the reports of all ranks.

    A gradient that is dense anywhere travels dense. A sparse one does too if that moves fewer
    bytes: each rank receives about twice the whole in an allreduce, and all ranks' elements, with
    their indices, in an exchange of elements.

    Args:
        reports: for each rank the layout, the number of sparse dimensions and the bytes of its
            elements.
        dense_bytes: of the whole gradient.
        may_travel_sparse: False if sparse gradients travel dense in any case.

    Returns:
        None if no rank has a gradient.
    """
    kinds = {kind for kind, _, _ in reports}
    if Kind.DENSE in kinds:
        return DENSE
    if Kind.SPARSE not in kinds:
        return None
    sparse_dim = max(dims for _, dims, _ in reports)
    element_bytes = sum(num_bytes for _, _, num_bytes in reports)
    return GradientLayout(sparse_dim, may_travel_sparse and element_bytes < 2 * dense_bytes)


class LayoutAgreement(Generic[P]):
    """The layouts of one optimizer's gradients in one job.

    Args:
        group: the ranks that take part.
        gradients: of this rank.
        may_travel_sparse: False if all gradients travel dense.
        call_site: where the optimizer was made, for messages.
    """

    def __init__(
        self, group: Group, gradients: Gradients[P], may_travel_sparse: bool, call_site: str
    ) -> None:
        self._group = group
        self._gradients = gradients
        self._may_travel_sparse = may_travel_sparse
        self._call_site = call_site
        self._layouts: dict[P, GradientLayout] = {}
        self._provisional: list[P] = []
        self._asked: list[P] = []
        self._ready_order: list[P] = []
        self._has_asked = False
        self._handle: Handle | None = None

    @property
    def ready_order(self) -> Sequence[P]:
        """Dense parameters in the order in which the first rank had their gradients.

        Known after :meth:`settle`, on all ranks alike, if the last round was one of all ranks;
        otherwise empty. Holds only parameters to which all ranks gave a place.
        """
        return self._ready_order

    def layout_of(self, param: P) -> GradientLayout | None:
        """The layout of a parameter's gradient; None while it has not been agreed."""
        return self._layouts.get(param)

    def is_known(self, param: P) -> bool:
        """Whether it is clear how a gradient travels.

        One that is dense here travels dense, whatever the other ranks will say.
        """
        if param in self._layouts:
            return True
        kind = self._gradients.kind(param)
        return kind is Kind.DENSE or (kind is Kind.SPARSE and not self._may_travel_sparse)

    def travels_sparse(self, param: P) -> bool:
        """Whether a gradient's elements travel; to be asked once that is known or settled."""
        layout = self._layouts.get(param)
        return layout is not None and layout.travels_sparse

    def travels_dense(self, param: P) -> bool:
        """Whether a gradient travels as a whole; one that no rank has ever had does not travel."""
        layout = self._layouts.get(param)
        return self.is_known(param) if layout is None else not layout.travels_sparse

    def sparse_dim(self, param: P) -> int:
        """The number of sparse dimensions of a gradient that travels sparse."""
        return self._layouts[param].sparse_dim

    def ask(
        self,
        name: str,
        names: Mapping[P, str],
        left_dense: Container[P],
        places: Callable[[], Mapping[P, int]],
    ) -> None:
        """Starts a round about those that are not agreed, if this step has had none yet.

        All ranks must call; none waits.

        Args:
            name: what the ranks agree on.
            names: of all parameters, the same on all ranks.
            left_dense: those that are on their way already.
            places: returns those in the order of gradients, of the parameters that could live in a
                bucket; called only if there is something to ask.
        """
        if self._has_asked:
            return
        self.settle()
        self.begin_step()
        self._has_asked = True
        self._ready_order = []
        if len(self._layouts) == len(names):
            return
        self._asked = sorted(names.keys() - self._layouts.keys(), key=names.__getitem__)
        sent, place_of = array("q"), places()
        for param in self._asked:
            sent.extend(self._report(param, param in left_dense))
            sent.append(place_of.get(param, _NO_PLACE))
        buffer = Buffer(sent.buffer_info()[0], "int64", (1, len(self._asked), _NUMBERS))
        self._handle = self._group.allgather(
            (buffer,), name=name, call_site=self._call_site, keep=sent
        )

    def wait(self) -> None:
        """Waits until all ranks have asked, if this one has.

        Raises:
            HorovodInternalError: the ranks do not reduce the same parameters, or the job failed.
        """
        if self._handle is None:
            return
        try:
            self._handle.wait()
        except HorovodInternalError:
            self._handle = None
            raise

    def settle(self) -> None:
        """Takes the answers of the round that was started last, once they are there.

        Raises:
            HorovodInternalError: the ranks do not reduce the same parameters, or the job failed.
        """
        self.wait()
        handle, self._handle = self._handle, None
        if handle is None:
            return
        everyones = _rows(handle.results()[0])
        places: dict[P, int] = {}
        for index, param in enumerate(self._asked):
            reports = [of_rank[index * _NUMBERS :][:_NUMBERS] for of_rank in everyones]
            dense_bytes = self._gradients.dense_bytes(param)
            layout = decide_layout(
                [report[:3] for report in reports], dense_bytes, self._may_travel_sparse
            )
            if layout is not None:
                self._layouts[param] = layout
            if layout == DENSE and min(report[3] for report in reports) > _NO_PLACE:
                places[param] = reports[0][3]
        if len(everyones) < self._group.size:
            self._provisional = self._asked
        else:
            self._ready_order = sorted(places, key=places.__getitem__)
        self._asked = []

    def begin_step(self) -> None:
        """Allows another round; forgets what was agreed while a rank had joined.

        That rank does not know of it.
        """
        self._has_asked = False
        for param in self._provisional:
            self._layouts.pop(param, None)
        self._provisional = []

    def _report(self, param: P, left_dense: bool) -> tuple[int, int, int]:
        kind = self._gradients.kind(param)
        if kind is Kind.SPARSE:
            return (kind, *self._gradients.sparse_extent(param))
        return Kind.DENSE if left_dense else kind, 0, 0


def _rows(gathered: NativeArray) -> list[list[int]]:
    """The numbers of each rank that took part."""
    num_ranks, num_params, _ = gathered.shape
    length = num_params * _NUMBERS
    numbers = (ctypes.c_int64 * (num_ranks * length)).from_address(gathered.address)[:]
    return [numbers[rank * length :][:length] for rank in range(num_ranks)]
