"""Which gradients are sparse and how they travel, agreed between the ranks.

A gradient's layout shows only when it is there, and some ranks may have none: they could not know
which operation the others run. So each rank tells what its parameters' gradients look like after
the first backward pass, once; parameters that had a gradient nowhere are asked about again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from horovod.torch.calls import AllgatherCall
from horovod.torch.sparse import sparse_bytes

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from horovod._native import Handle
    from horovod.group import Group

_NONE, _SPARSE, _DENSE = range(3)
_NO_PLACE = -1


@dataclass(frozen=True)
class GradientLayout:
    """What all ranks know of a parameter's gradient.

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
    """How a gradient travels, from what each rank has said of it.

    A gradient that is dense anywhere travels dense. A sparse one does too if that moves fewer
    bytes: each rank receives about twice the whole in an allreduce, and all ranks' elements, with
    their indices, in an exchange of elements.

    Args:
        reports: for each rank the layout, the number of sparse dimensions and the bytes of its
            elements.
        dense_bytes: of the whole gradient.
        may_travel_sparse: whether elements can be exchanged at all.

    Returns:
        None if no rank has a gradient.
    """
    kinds = {kind for kind, _, _ in reports}
    if _DENSE in kinds:
        return DENSE
    if _SPARSE not in kinds:
        return None
    sparse_dim = max(dims for _, dims, _ in reports)
    element_bytes = sum(num_bytes for _, _, num_bytes in reports)
    return GradientLayout(sparse_dim, may_travel_sparse and element_bytes < 2 * dense_bytes)


class LayoutAgreement:
    """The layouts of one optimizer's gradients in one job.

    Args:
        group: the ranks that take part.
        may_travel_sparse: False if all gradients travel dense.
        call_site: where the optimizer was made, for messages.
    """

    def __init__(self, group: Group, may_travel_sparse: bool, call_site: str) -> None:
        self._group = group
        self._call_site = call_site
        self._may_travel_sparse = may_travel_sparse
        self._layouts: dict[torch.Tensor, GradientLayout] = {}
        self._provisional: list[torch.Tensor] = []
        self._asked: list[torch.Tensor] = []
        self._ready_order: list[torch.Tensor] = []
        self._handle: Handle | None = None

    @property
    def ready_order(self) -> Sequence[torch.Tensor]:
        """Dense parameters in the order in which the first rank had their gradients.

        Known after :meth:`settle`, on all ranks alike, if the last round was one of all ranks;
        otherwise empty. Holds only parameters to which all ranks gave a place.
        """
        return self._ready_order

    def layout_of(self, param: torch.Tensor) -> GradientLayout | None:
        """The layout of a parameter's gradient; None while it has not been agreed."""
        return self._layouts.get(param)

    def is_known(self, param: torch.Tensor) -> bool:
        """Whether it is clear how a gradient travels.

        One that is dense here travels dense, whatever the other ranks will say.
        """
        gradient = param.grad
        return param in self._layouts or (
            gradient is not None
            and not (self._may_travel_sparse and gradient.layout is torch.sparse_coo)
        )

    def travels_sparse(self, param: torch.Tensor) -> bool:
        """Whether a gradient's elements travel; to be asked once that is known or settled."""
        layout = self._layouts.get(param)
        return layout is not None and layout.travels_sparse

    def travels_dense(self, param: torch.Tensor) -> bool:
        """Whether a gradient travels as a whole; one that no rank has ever had does not travel."""
        layout = self._layouts.get(param)
        return self.is_known(param) if layout is None else not layout.travels_sparse

    def sparse_dim(self, param: torch.Tensor) -> int:
        """The number of sparse dimensions of a gradient that travels sparse."""
        return self._layouts[param].sparse_dim

    def ask(
        self,
        name: str,
        names: Mapping[torch.Tensor, str],
        left_dense: Container[torch.Tensor],
        places: Mapping[torch.Tensor, int],
    ) -> None:
        """Starts a round about those that are not agreed; all ranks must call, none waits.

        Args:
            name: what the ranks agree on.
            names: of all parameters, the same on all ranks.
            left_dense: those that are on their way already.
            places: in the order of gradients, of the parameters that could live in a bucket.
        """
        self.settle()
        self.begin_step()
        self._ready_order = []
        if len(self._layouts) == len(names):
            return
        self._asked = sorted(names.keys() - self._layouts.keys(), key=names.__getitem__)
        reports = [
            (*_report(param, param in left_dense), places.get(param, _NO_PLACE))
            for param in self._asked
        ]
        sent = torch.tensor([reports], dtype=torch.int64, device="cpu")
        self._handle = AllgatherCall(self._group, name, "allgather", self._call_site).submit(
            (sent,)
        )

    def settle(self) -> None:
        """Waits for the round that was started last.

        Raises:
            HorovodInternalError: the ranks do not reduce the same parameters, or the job failed.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            return
        handle.wait()
        (gathered,) = AllgatherCall.take(handle)
        places: dict[torch.Tensor, int] = {}
        for param, reports in zip(self._asked, gathered.unbind(dim=1), strict=True):
            dense_bytes = param.numel() * param.element_size()
            layout = decide_layout(reports[:, :3].tolist(), dense_bytes, self._may_travel_sparse)
            if layout is not None:
                self._layouts[param] = layout
            if layout == DENSE and reports[:, 3].min() > _NO_PLACE:
                places[param] = int(reports[0, 3])
        if len(gathered) < self._group.size:
            self._provisional = self._asked
        else:
            self._ready_order = sorted(places, key=places.__getitem__)
        self._asked = []

    def begin_step(self) -> None:
        """Forgets what was agreed while a rank had joined, as that rank does not know of it."""
        for param in self._provisional:
            self._layouts.pop(param, None)
        self._provisional = []


def _report(param: torch.Tensor, left_dense: bool) -> tuple[int, int, int]:
    gradient = param.grad
    if gradient is not None and gradient.layout is torch.sparse_coo:
        return _SPARSE, gradient.sparse_dim(), sparse_bytes(gradient)
    return (_DENSE if left_dense or gradient is not None else _NONE), 0, 0
