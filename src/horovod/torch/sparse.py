"""Sums of sparse tensors over ranks: the rows that somebody has travel, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod._rank.reduction import ReduceOp
from horovod._train.call_site import call_site
from horovod._train.compression import refuse_quantizing
from horovod._train.gradient_reducer import SPARSE_OPS
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import resolve_reduce_op
from horovod.errors import HorovodInternalError, MismatchError, UsageError
from horovod.torch.calls import AllgatherCall
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.devices import beside

if TYPE_CHECKING:
    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod._train.compression import CompressorLike

_HALF = (torch.float16, torch.bfloat16)
_INDEX_BYTES = 8
_NO_WEIGHT = -1.0


@outside_of_graphs
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> SparseInFlight:
    """Starts the sum or the average of a sparse tensor over all ranks.

    Equal indices are merged before anything is sent. Indices and values then go to all ranks as one
    operation, whatever their number; use ``tensor.to_dense()`` and allreduce for a tensor most of
    whose rows some rank has. DistributedOptimizer makes this choice for gradients.

    Args:
        tensor: COO layout, coalesced or not, of any shape and numeric dtype, the same on all ranks
            as is the number of sparse dimensions; a rank may have no element.
        name: what the ranks agree on; None counts up.
        op: Average or Sum.
        process_set: the ranks that take part.

    Returns:
        A function that waits and returns the reduced tensor, coalesced; so does
        ``hvd.synchronize`` of it. It raises HorovodInternalError if the operation failed,
        MismatchError if shapes differ.

    Raises:
        UsageError: the tensor is not a COO tensor, or ``op`` is another reduction.

    Example:
        >>> finish = hvd.sparse_allreduce_async(table.weight.grad, "table", hvd.Average)
        >>> table.weight.grad = finish()
    """
    exchange = SparseExchange(group_of(process_set), resolve_reduce_op(op), call_site())
    return exchange.start(tensor, name)


@dataclass(frozen=True)
class SparseExchange:
    """The reduction of sparse tensors.

    Attributes:
        group: the ranks that take part.
        op: Average or Sum.
        call_site: ``file:line`` of the caller.
        weight: of this rank in a weighted average, or None on all ranks.
        compression: how values travel.

    Raises:
        UsageError: ``op`` is another reduction, or ``compression`` is to 8 bits.
    """

    group: Group
    op: ReduceOp
    call_site: str
    weight: float | None = None
    compression: CompressorLike = Compression.none

    def __post_init__(self) -> None:
        refuse_quantizing(self.compression, "a sparse gradient, without sparse_as_dense=True,")
        if self.op not in SPARSE_OPS:
            raise UsageError(
                f"op={self.op.name} of sparse tensors: only Average and Sum take a missing element "
                "for zero; use tensor.to_dense()"
            )

    def start(self, tensor: torch.Tensor, name: str | None) -> SparseInFlight:
        """Sends this rank's elements; see :func:`sparse_allreduce_async`.

        Raises:
            UsageError: the tensor is not a COO tensor, or its values cannot be sent.
        """
        if tensor.layout is not torch.sparse_coo:
            raise UsageError(
                f"a sparse reduction needs a tensor of COO layout, not of {tensor.layout}; use "
                "tensor.to_sparse(), or allreduce for a dense one"
            )
        rows = merged(tensor.detach())
        if self.weight == 0.0:  # which may be infinite
            rows = empty_like(rows, rows.sparse_dim())
        values, context = self.compression.compress(rows.values())
        header = beside(values, [self._header(rows)], torch.float64)
        sent = (rows.indices().t().contiguous(), values.contiguous(), header)
        call = AllgatherCall(self.group, name, "sparse_allreduce", self.call_site)
        return SparseInFlight(self, call, call.submit(sent), rows.shape, rows.dtype, context)

    def _header(self, rows: torch.Tensor) -> list[float]:
        weight = _NO_WEIGHT if self.weight is None else self.weight
        rank = self.group.ranks[self.group.rank]
        return [rank, rows.values().shape[0], weight, self.op, rows.sparse_dim(), *rows.shape]


@dataclass(frozen=True)
class SparseInFlight:
    """A sparse tensor on its way; calling it waits and returns the :meth:`result`.

    Attributes:
        exchange: how it is reduced.
        call, handle: the operation.
        shape, dtype: of the tensor.
        context: what the compression needs to restore the values.
    """

    exchange: SparseExchange
    call: AllgatherCall
    handle: Handle
    shape: torch.Size
    dtype: torch.dtype
    context: Any

    def __call__(self) -> torch.Tensor:
        """Return :meth:`result`."""
        return self.result()

    def done(self) -> bool:
        """Whether the operation ended, also with an error; never blocks."""
        return self.handle.done()

    def result(self) -> torch.Tensor:
        """Waits for the elements of all ranks and returns their sum or average, coalesced.

        Raises:
            MismatchError: the ranks' tensors differ in shape, or only some ranks gave a weight.
            HorovodInternalError: the operation failed.
        """
        self.handle.wait()
        indices, values, headers = self.call.take(self.handle)
        self._check(headers)
        values = self.exchange.compression.decompress(values, self.context)
        values = self._weighted(_wide(values), headers)
        total = _coo(indices.t(), values, self.shape).coalesce()
        return _with_values(total, self._averaged(total.values()).to(self.dtype))

    def _check(self, headers: torch.Tensor) -> None:
        alike = torch.cat((headers[:, 2:3] == _NO_WEIGHT, headers[:, 3:]), dim=1)
        if bool((alike == alike[0]).all()):
            return
        sent = "; ".join(
            f"rank {int(rank)}: shape {tuple(map(int, shape))}, {int(sparse_dim)} sparse "
            f"dimensions, op {ReduceOp(int(op)).name}, "
            + ("no weight" if weight == _NO_WEIGHT else f"weight {weight}")
            for rank, _, weight, op, sparse_dim, *shape in headers.tolist()
        )
        raise MismatchError(
            f"sparse_allreduce at {self.exchange.call_site}: the ranks' tensors differ: {sent}"
        )

    def _weighted(self, values: torch.Tensor, headers: torch.Tensor) -> torch.Tensor:
        """Every rank's values times its share of the weights."""
        if self.exchange.weight is None:
            return values
        counts, weights = headers[:, 1].to(torch.int64), headers[:, 2]
        total = weights.sum()
        if not total > 0.0:
            raise HorovodInternalError(
                f"sparse_allreduce at {self.exchange.call_site}: the weights of all ranks sum up "
                f"to {float(total)}; some rank needs one above 0"
            )
        shares = torch.repeat_interleave(weights / total, counts)
        return values * shares.to(values.dtype).view(-1, *[1] * (values.dim() - 1))

    def _averaged(self, values: torch.Tensor) -> torch.Tensor:
        if self.exchange.op != ReduceOp.AVERAGE or self.exchange.weight is not None:
            return values
        if values.is_floating_point() or values.is_complex():
            return values / self.exchange.group.size
        return torch.div(values, self.exchange.group.size, rounding_mode="trunc")


def merged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with each index once; halves are added in float32.

    Args:
        tensor: COO layout, any dtype.

    Returns:
        A coalesced tensor.
    """
    if tensor.is_coalesced() or tensor.dtype not in _HALF:
        return tensor.coalesce()
    total = _coo(tensor._indices(), _wide(tensor._values()), tensor.shape).coalesce()
    return _with_values(total, total.values().to(tensor.dtype))


def sparse_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes of a COO tensor travel: indices and values once merged."""
    rows = merged(tensor)
    return rows.indices().numel() * _INDEX_BYTES + rows.values().numel() * rows.element_size()


def empty_like(tensor: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A COO tensor without elements.

    Args:
        tensor: gives shape and dtype.
        sparse_dim: its number of sparse dimensions; the others are dense.
    """
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=tensor.device)
    values = torch.empty(0, *tensor.shape[sparse_dim:], dtype=tensor.dtype, device=tensor.device)
    return _coo(indices, values, tensor.shape, is_coalesced=True)


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32) if values.dtype in _HALF else values


def _with_values(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return _coo(tensor.indices(), values, tensor.shape, is_coalesced=True)


def _coo(
    indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, is_coalesced: bool | None = None
) -> torch.Tensor:
    # The indices come from tensors of the same shape, so there is nothing to check.
    return torch.sparse_coo_tensor(
        indices, values, shape, check_invariants=False, is_coalesced=is_coalesced
    )
