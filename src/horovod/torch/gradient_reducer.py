"""Reduces gradients while the backward pass is still running.

Life of a gradient: the backward pass has added to ``p.grad`` -> the hook counts the pass -> all
members of its group have their passes: *launched*, now *in flight* -> waited for -> written back
into ``p.grad``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod.errors import HorovodInternalError, UsageError
from horovod.torch.tensors import dense, views
from horovod.train.gradients import GradientSchedule
from horovod.train.numbering import NameNumbers
from horovod.train.process_set import ProcessSet, group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.hooks import RemovableHandle

    from horovod._native import Handle
    from horovod.group import Group, ReduceOp
    from horovod.torch.compression import Compressor

_numbers = NameNumbers()


@dataclass(frozen=True)
class ReductionSettings:
    """How the gradients of one optimizer are reduced.

    Attributes:
        op: Average, Sum, Min, Max or Product.
        predivide_factor: divides gradients before the reduction and multiplies them after it.
        compression: how they travel.
        sparse_as_dense: whether sparse gradients travel as dense ones.
        process_set: the ranks that take part.
        call_site: where the optimizer was made, for messages.
    """

    op: ReduceOp
    predivide_factor: float
    compression: type[Compressor] | Compressor
    sparse_as_dense: bool
    process_set: ProcessSet
    call_site: str


@dataclass(frozen=True)
class _Sent:
    """A gradient in flight.

    Attributes:
        param: whose gradient it is.
        gradient: ``param.grad`` when it was launched, None if there was none.
        wire: the tensor that is reduced in place; may be the gradient itself.
        context: what the compression needs to restore it.
    """

    param: torch.Tensor
    gradient: torch.Tensor | None
    wire: torch.Tensor
    context: Any


class GradientReducer:
    """Watches parameters, reduces their gradients over the ranks and puts the results in place.

    Hooks on the parameters refer to the reducer weakly: when it goes, they go, and neither keeps
    the model alive.

    Args:
        settings: how to reduce.
        names: of all parameters that may ever be reduced.
        groups: trainable parameters that leave together, in the same order on all ranks.
        passes: backward passes per step.

    Attributes:
        reduced: whether ``p.grad`` holds the reduced gradients of the current step.
    """

    def __init__(
        self,
        settings: ReductionSettings,
        names: dict[torch.Tensor, str],
        groups: Iterable[Sequence[torch.Tensor]],
        passes: int,
    ) -> None:
        self.reduced = False
        self.names = names
        self._settings = settings
        self._schedule: GradientSchedule[torch.Tensor] = GradientSchedule(passes)
        self._in_flight: list[tuple[Handle, list[_Sent]]] = []
        self._group: Group | None = None
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks).atexit = False
        # Optimizers over parameters of equal names may be in flight at the same time.
        number = _numbers.number_for(names.values(), self._bind())
        self._suffix = "" if number == 1 else f".optimizer{number}"
        for group in groups:
            self._watch(group)

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._schedule.passes

    def reduce(self, params: Iterable[torch.Tensor]) -> None:
        """Launches what is missing, waits for everything and writes the results into ``p.grad``.

        Parameters without a gradient take part with zeros, as other ranks may have one.

        Args:
            params: all parameters of the optimizer; newly trainable ones are watched from now on.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        self._launch_missing(params)
        self._finish(self._write_back)
        self.reduced = True

    def discard(self, params: Iterable[torch.Tensor]) -> None:
        """Begins a new step; waits for gradients in flight, as other ranks wait for them."""
        if self._in_flight:
            self._launch_missing(params)
        self._finish(_drop)

    def abandon(self) -> None:
        """Forgets this step, whatever became of its gradients."""
        try:
            self._finish(_drop)
        except HorovodInternalError:
            # The state is being restored because of it.
            return

    def set_passes(self, passes: int) -> None:
        """Changes the backward passes per step and begins to count anew.

        Raises:
            UsageError: it is below 1.
        """
        self._finish(self._write_back)
        self._schedule.reset(passes)

    def on_gradient(self, param: torch.Tensor) -> None:
        """Counts a backward pass that has added to ``param.grad``; launches what is complete.

        Raises:
            AssertionError: more passes than agreed, or the gradient has a graph of its own.
            UsageError: the gradient cannot be sent.
            HorovodInternalError: the engine can no longer work.
        """
        self.reduced = False
        if self._bind().size > 1:
            members = self._schedule.arrived(param)
            if members:
                self._launch(members)

    def _watch(self, params: Sequence[torch.Tensor]) -> None:
        reference = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.on_gradient(param)

        self._schedule.add_group(params)
        for param in params:
            handle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._hooks.append(handle)

    def _bind(self) -> Group:
        """The group in use; a new one after ``hvd.shutdown()`` and ``hvd.init()``."""
        group = group_of(self._settings.process_set)
        if group is not self._group:
            self._group = group
            self._in_flight.clear()
            self._schedule.reset()
        return group

    def _launch_missing(self, params: Iterable[torch.Tensor]) -> None:
        group = self._bind()
        for param in params:
            if param.requires_grad and param not in self._schedule:
                self._watch((param,))
        if group.size > 1:
            for members in self._schedule.take_missing():
                self._launch(members)

    def _launch(self, params: Sequence[torch.Tensor]) -> None:
        settings = self._settings
        sent = [self._prepare(param) for param in params]
        wires = [item.wire for item in sent]
        buffers = views(wires)
        handle = self._bind().allreduce(
            buffers,
            buffers,
            op=settings.op,
            prescale=1.0 / settings.predivide_factor,
            postscale=settings.predivide_factor,
            name=self.names[params[0]] + self._suffix,
            prefix="allreduce" if len(params) == 1 else "grouped_allreduce",
            call_site=settings.call_site,
            keep=wires,
        )
        self._in_flight.append((handle, sent))

    def _prepare(self, param: torch.Tensor) -> _Sent:
        gradient = param.grad
        if gradient is None:
            source = torch.zeros_like(param, requires_grad=False)
        elif gradient.requires_grad:
            raise AssertionError(
                f"the gradient of {self.names[param]!r} has a graph of its own; use "
                "torch.autograd.grad, as DistributedOptimizer does not support "
                "backward(create_graph=True)"
            )
        elif gradient.layout is torch.strided:
            source = gradient
        elif self._settings.sparse_as_dense:
            source = gradient.to_dense()
        else:
            raise UsageError(
                f"the gradient of {self.names[param]!r} is sparse; give DistributedOptimizer "
                "sparse_as_dense=True, sparse reductions are not supported in this version"
            )
        compressed, context = self._settings.compression.compress(source)
        return _Sent(param, gradient, dense(compressed), context)

    def _finish(self, take: Callable[[_Sent], None]) -> None:
        """Waits for everything in flight and begins a new step, also when something failed."""
        in_flight, self._in_flight = self._in_flight, []
        failure: HorovodInternalError | None = None
        try:
            for handle, sent in in_flight:
                try:
                    handle.wait()
                except HorovodInternalError as error:
                    failure = failure or error
                else:
                    for item in sent:
                        take(item)
        finally:
            self.reduced = False
            self._schedule.reset()
        if failure is not None:
            raise failure

    def _write_back(self, item: _Sent) -> None:
        reduced = self._settings.compression.decompress(item.wire, item.context)
        param, gradient = item.param, item.gradient
        if param.grad is not gradient or reduced is gradient:
            # Somebody dropped or replaced the gradient meanwhile, or it was reduced in place.
            return
        if gradient is None:
            # A parameter that was frozen on this rank must stay without gradient.
            param.grad = reduced if param.requires_grad else None
        elif gradient.layout is torch.strided:
            with torch.no_grad():
                gradient.copy_(reduced)
        else:
            param.grad = reduced.to_sparse(gradient.sparse_dim())


def _drop(_: _Sent) -> None:
    """Leaves ``p.grad`` as it is."""


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
