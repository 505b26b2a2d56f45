"""Gradients of the collectives.

Each backward pass is made of differentiable collectives itself, so second derivatives work too. It
runs under the name of the forward call with ``.gradient`` appended; unnamed calls count up as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod._rank.reduction import ReduceOp
from horovod.errors import UsageError
from horovod.torch.calls import (
    AllgatherCall,
    AllreduceCall,
    AlltoallCall,
    BroadcastCall,
    CollectiveCall,
    ReducescatterCall,
)
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.tensors import dense

if TYPE_CHECKING:
    from collections.abc import Sequence

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]


def tracks(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call on these tensors has to be recorded for the backward pass."""
    return torch.is_grad_enabled() and any(
        getattr(tensor, "requires_grad", False) for tensor in tensors
    )


def _apply(
    function: type[torch.autograd.Function], call: CollectiveCall, *tensors: torch.Tensor
) -> Any:
    return function.apply(call, *tensors)  # type: ignore[no-untyped-call]


def allreduce(call: AllreduceCall, tensors: Sequence[torch.Tensor]) -> Tensors:
    """Runs the call; its gradient is the same allreduce of the incoming gradients.

    This is what optimizers expect that average the gradients of parameters in the same way. With
    shares s (1/size, or weight/sum of weights) the loss of the job is L = sum(s_i L_i), the result
    is y = sum(s_j x_j), and dL/dx_j = s_j sum(s_i dL_i/dy). The optimizer multiplies what rank j
    finds by s_j, so the backward pass leaves that factor out and returns sum(s_i dL_i/dy).
    """
    if not tracks(tensors):
        return call.run(tensors)
    outputs: Tensors = _apply(_Allreduce, call, *tensors)
    return outputs


def reducescatter(call: ReducescatterCall, tensors: Sequence[torch.Tensor]) -> Tensors:
    """Runs the call; its gradient gathers the incoming ones, scaled like the sum."""
    if not tracks(tensors):
        return call.run(tensors)
    outputs: Tensors = _apply(_Reducescatter, call, *tensors)
    return outputs


def allgather(call: AllgatherCall, tensors: Sequence[torch.Tensor]) -> Tensors:
    """Runs the call; its gradient is this rank's rows of the averaged incoming gradient."""
    if not tracks(tensors):
        return call.run(tensors)
    if any(tensor.dim() == 0 for tensor in tensors):
        raise UsageError("allgather of a tensor without dimensions; use tensor.reshape(1)")
    outputs: Tensors = _apply(_Allgather, call, *tensors)
    return outputs


def broadcast(call: BroadcastCall, tensor: torch.Tensor) -> torch.Tensor:
    """Runs the call; its gradient is the averaged incoming one on the root, zero elsewhere."""
    if not tracks((tensor,)):
        return call.run(tensor)
    output: torch.Tensor = _apply(_Broadcast, call, tensor)
    return output


def alltoall(call: AlltoallCall, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the call; its gradient sends each row of the incoming gradient back."""
    if not tracks((tensor,)):
        return call.run(tensor)
    pair: tuple[torch.Tensor, torch.Tensor] = _apply(_Alltoall, call, tensor)
    return pair


def _average(call: CollectiveCall, gradients: Sequence[torch.Tensor]) -> Tensors:
    prefix = "grouped_allreduce" if call.prefix.startswith("grouped_") else "allreduce"
    return allreduce(
        AllreduceCall(call.group, call.gradient_name(), prefix, call.call_site), gradients
    )


class _Collective(torch.autograd.Function):
    """Chooses the incoming gradients that somebody wants; integer tensors of a group have none."""

    @staticmethod
    def wanted(ctx: Any, gradients: Gradients) -> list[torch.Tensor]:
        return [
            dense(gradient)
            for gradient, needed in zip(gradients, ctx.needs_input_grad[1:], strict=True)
            if needed and gradient is not None
        ]

    @staticmethod
    def placed(ctx: Any, results: Sequence[torch.Tensor]) -> Gradients:
        left = iter(results)
        return (None, *(next(left) if needed else None for needed in ctx.needs_input_grad[1:]))


class _Allreduce(_Collective):
    @staticmethod
    def forward(ctx: Any, call: AllreduceCall, *tensors: torch.Tensor) -> Tensors:
        ctx.call = call
        return call.run(tensors)

    @staticmethod
    @outside_of_graphs
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Gradients:
        wanted = _Collective.wanted(ctx, gradients)
        return _Collective.placed(ctx, allreduce(ctx.call.as_gradient(), wanted))


class _Reducescatter(_Collective):
    @staticmethod
    def forward(ctx: Any, call: ReducescatterCall, *tensors: torch.Tensor) -> Tensors:
        ctx.call = call
        return call.run(tensors)

    @staticmethod
    @outside_of_graphs
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Gradients:
        call: ReducescatterCall = ctx.call
        op, prescale, postscale, *_ = call.reduction
        factor = prescale * postscale
        if op == ReduceOp.SUM:
            factor *= call.group.size
        scaled = [gradient * factor for gradient in _Collective.wanted(ctx, gradients)]
        prefix = call.prefix.replace("reducescatter", "allgather")
        gather = AllgatherCall(call.group, call.gradient_name(), prefix, call.call_site)
        return _Collective.placed(ctx, allgather(gather, scaled))


class _Allgather(_Collective):
    @staticmethod
    def forward(ctx: Any, call: AllgatherCall, *tensors: torch.Tensor) -> Tensors:
        ctx.call = call
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return call.run(tensors)

    @staticmethod
    @outside_of_graphs
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Gradients:
        call: AllgatherCall = ctx.call
        rows = [n for n, needed in zip(ctx.rows, ctx.needs_input_grad[1:], strict=True) if needed]
        starts = _offsets(call, rows)
        reduced = _average(call, _Collective.wanted(ctx, gradients))
        own = [
            gradient.narrow(0, start, num_rows)
            for gradient, start, num_rows in zip(reduced, starts, rows, strict=True)
        ]
        return _Collective.placed(ctx, own)


def _offsets(call: AllgatherCall, rows: Sequence[int]) -> list[int]:
    """Return the first row of this rank in each gathered tensor."""
    name = None if call.name is None else f"{call.name}.rows"
    (gathered,) = AllgatherCall(call.group, name, "allgather", call.call_site).run(
        (torch.tensor(rows, dtype=torch.int64, device="cpu"),)
    )
    before = gathered.reshape(call.group.size, len(rows))[: call.group.rank]
    return [int(start) for start in before.sum(dim=0).tolist()]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: BroadcastCall, tensor: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        return call.run(tensor)

    @staticmethod
    @outside_of_graphs
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        call: BroadcastCall = ctx.call
        (reduced,) = _average(call, (dense(gradient),))
        return None, reduced if call.is_root else torch.zeros_like(reduced)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: AlltoallCall, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.call = call
        ctx.shape = tensor.shape
        handle = call.submit(tensor, waits_next=True)
        handle.wait()
        output, received = call.take(handle)
        ctx.received = tuple(handle.received_splits())
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    @outside_of_graphs
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[None, torch.Tensor]:
        call: AlltoallCall = ctx.call
        back = AlltoallCall(
            call.group, call.gradient_name(), call.prefix, call.call_site, ctx.received
        )
        sent, _ = alltoall(back, dense(gradient))
        missing = ctx.shape[0] - sent.shape[0]
        if missing:
            # Rows beyond the sum of the splits were not sent and have no influence.
            shape = (missing, *ctx.shape[1:])
            sent = torch.cat((sent, sent.new_zeros(shape)))
        return None, sent
