"""Reduces the gradients of PyTorch parameters, as :mod:`horovod._train.gradient_reducer` says."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch

from horovod._rank.reduction import QuantizedFormat, Reduction
from horovod._train import gradient_reducer
from horovod._train.compression import compressed, format_of, quantizing
from horovod._train.gradient_buckets import GradientBuckets, plan_gradient_buckets
from horovod.errors import HorovodInternalError
from horovod.torch.backward_runs import current_run, is_nested
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.devices import by_device
from horovod.torch.error_feedback import ErrorFeedback
from horovod.torch.gradient_buckets import GradientBucket, extent_of, may_live_in_bucket
from horovod.torch.gradient_layouts import ParameterGradients
from horovod.torch.gradients_in_flight import (
    BucketInFlight,
    DenseInFlight,
    SentDense,
    SparseGradientInFlight,
)
from horovod.torch.powersgd import (
    LowRankInFlight,
    LowRankMemory,
    PowerSGDCompressor,
    launch,
)
from horovod.torch.sparse import SparseExchange, empty_like
from horovod.torch.tensor_holders import CAN_TELL, is_own_gradient, sharing_memory
from horovod.torch.tensors import dense, memory_of, parameter_of, views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.hooks import RemovableHandle

    from horovod._native import Buffer, Handle
    from horovod._rank.group import Group
    from horovod._train.compression import CompressorLike
    from horovod._train.gradient_reducer import GradientsInFlight, ReducerSettings
    from horovod._train.same_parameters import Parameter


class GradientReducer(gradient_reducer.GradientReducer[torch.Tensor, GradientBucket]):
    """Watches parameters, reduces their gradients over the ranks and puts the results in place.

    Hooks on the parameters refer to the reducer weakly: when it goes, they go, and neither keeps
    the model alive.

    Args:
        settings, names, groups, passes: as of the base class.
    """

    def __init__(
        self,
        settings: ReducerSettings,
        names: dict[torch.Tensor, str],
        groups: Iterable[Sequence[torch.Tensor]],
        passes: int,
    ) -> None:
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks).atexit = False
        reference = weakref.ref(self)

        @outside_of_graphs
        def on_gradient(param: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.on_gradient(param)

        @outside_of_graphs
        def before_gradient(
            param_reference: weakref.ref[torch.Tensor], gradient: torch.Tensor
        ) -> torch.Tensor | None:
            reducer, param = reference(), param_reference()
            if reducer is None or param is None:
                return None
            return reducer.before_gradient(param, gradient)

        self._on_gradient = on_gradient
        self._before_gradient = before_gradient
        self._passes_hooked: set[torch.Tensor] = set()
        self._from_before: dict[torch.Tensor, torch.Tensor] = {}
        self._sharing: set[torch.Tensor] | None = None
        self._feedback = ErrorFeedback() if format_of(settings.compression) else None
        low_rank = isinstance(settings.compression, PowerSGDCompressor)
        self._low_rank = LowRankMemory(names) if low_rank else None
        super().__init__(settings, ParameterGradients(), names, groups, passes)

    @property
    def feedback(self) -> ErrorFeedback | LowRankMemory | None:
        """What compression has left of this rank's gradients; None if it keeps nothing."""
        return self._feedback or self._low_rank

    @property
    def _compression(self) -> CompressorLike:
        """How gradients travel that PowerSGD leaves alone."""
        if self._low_rank is not None:
            return Compression.none
        compression: CompressorLike = self._settings.compression
        return compression

    def _hook(self, param: torch.Tensor) -> None:
        handle = param.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
        self._hooks.append(handle)

    def _hook_pass(self, param: torch.Tensor) -> None:
        if param.requires_grad and param not in self._passes_hooked:
            self._passes_hooked.add(param)
            handle = param.register_hook(partial(self._before_gradient, weakref.ref(param)))  # type: ignore[no-untyped-call]
            self._hooks.append(handle)

    def before_gradient(self, param: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
        """Weighs a gradient before autograd adds it to ``p.grad``, where passes have weights.

        Returns:
            What to add, or None for the gradient itself.
        """
        shares = self.weigh_pass(param, current_run(), is_nested)
        if shares is None:
            return None
        there = param.grad
        if there is not None:
            with torch.no_grad():
                if shares.is_first:
                    self._from_before[param] = there.detach().clone()
                    there.zero_()
                elif shares.kept != 1.0:
                    there.mul_(shares.kept)
        return gradient * shares.taken if shares.taken else torch.zeros_like(gradient)

    def _complete_pass(self, param: torch.Tensor, kept: float) -> None:
        before = self._from_before.pop(param, None)
        if param.grad is None:
            return
        with torch.no_grad():
            if kept != 1.0:
                param.grad.mul_(kept)
            if before is not None:
                param.grad += before

    def _begin_step(self) -> None:
        self._from_before.clear()
        self._sharing = None
        super()._begin_step()

    def _may_leave(self, params: Sequence[torch.Tensor]) -> bool:
        if all(map(self._is_own, params)):
            return True
        if self._sharing is None:
            self._sharing = sharing_memory(self.names)
        return self._sharing.isdisjoint(params)

    def _is_own(self, param: torch.Tensor) -> bool:
        """Return whether nothing but the parameter refers to the memory of its gradient."""
        bucket = self._bucket_of(param)
        if param.grad is None or (bucket and param.grad is bucket.place_of(param)):
            return True
        return param.grad.layout is not torch.strided or (CAN_TELL and is_own_gradient(param))

    def _is_trainable(self, param: torch.Tensor) -> bool:
        return param.requires_grad

    def _describe(self, name: str, param: torch.Tensor) -> Parameter:
        return parameter_of(name, param)

    def _places(self, group: Group) -> dict[torch.Tensor, int]:
        """The order in which gradients came, of those that can live in a bucket."""
        settings = self._settings
        if not (
            settings.buckets
            and (settings.compression is Compression.none or self._feedback is not None)
            and group.process_set_id == 0
            and group.engine.all_local
        ):
            return {}
        last = len(self._watched)
        return {
            param: self._arrivals.get(param, last)
            for param in self._watched
            if may_live_in_bucket(param)
        }

    def _new_buckets(
        self, group: Group, order: Sequence[torch.Tensor], name: str
    ) -> GradientBuckets[torch.Tensor, GradientBucket]:
        together = [members for members in self._groups if len(members) > 1]
        plan = plan_gradient_buckets(order, together, extent_of)
        buckets = [GradientBucket(bucket, self.names) for bucket in plan]
        num_bytes = plan[-1].offset + plan[-1].num_bytes if plan else 0
        return GradientBuckets(group, buckets, num_bytes, name, self._settings.call_site)

    def _by_device(self, params: Sequence[torch.Tensor]) -> Iterable[Sequence[torch.Tensor]]:
        return by_device(params)

    def _send_bucket(
        self, group: Group, bucket: GradientBucket, weight: float | None
    ) -> GradientsInFlight[torch.Tensor]:
        gradients = fill_bucket(bucket, weight)
        # Inside of a host nothing is quantized, but ranks compare what they ask for.
        reduction = quantizing(self._reduction(weight), self._compression)
        handle = self._submit(group, (bucket.buffer,), reduction, bucket.name, bucket.memory)
        return BucketInFlight(handle, gradients)

    def _send_dense(
        self, group: Group, params: Sequence[torch.Tensor], weight: float | None
    ) -> GradientsInFlight[torch.Tensor]:
        in_flight = self._send_low_rank(group, params, weight)
        if in_flight is not None:
            return in_flight
        sent = [self._prepare(param, weight) for param in params]
        wires = [item.wire for item in sent]
        prefix = "allreduce" if len(params) == 1 else "grouped_allreduce"
        name, keep = self.names[params[0]], memory_of(wires)
        residuals: Sequence[Buffer] = ()
        if self._feedback is not None and self._is_quantized(group, wires[0]):
            residuals, kept = self._feedback.of([self.names[p] for p in params], wires)
            keep += kept
        reduction = quantizing(self._reduction(weight), self._compression, residuals)
        handle = self._submit(group, views(wires), reduction, name, keep, prefix)
        return DenseInFlight(handle, sent, self._compression)

    def _send_low_rank(
        self, group: Group, params: Sequence[torch.Tensor], weight: float | None
    ) -> LowRankInFlight | None:
        compression, memory, (param, *others) = self._settings.compression, self._low_rank, params
        if memory is None or others:
            return None
        shape = compression.shape_of(param)
        if shape is None:
            return None

        def submit(part: str, wire: torch.Tensor, result: torch.Tensor) -> Handle:
            return group.allreduce(
                views((wire,)),
                views((result,)),
                self._reduction(weight),
                name=name,
                prefix=f"powersgd.{part}",
                call_site=self._settings.call_site,
                keep=(wire, result),
            )

        name, source = self.names[param] + self._suffix.within(group), None
        if weight != 0.0:
            there = param.grad
            source = torch.zeros_like(param) if there is None else _values_of(there)
        return launch(param, source, shape, memory, submit)

    def _finish(self, take: Callable[[GradientsInFlight[torch.Tensor]], None]) -> None:
        # The second halves are on their way together, before the first of them is waited for.
        for gradients in self._in_flight:
            if isinstance(gradients, LowRankInFlight):
                with suppress(HorovodInternalError):  # which waiting raises again
                    gradients.advance()
        super()._finish(take)

    def _is_quantized(self, group: Group, wire: torch.Tensor) -> bool:
        """Return whether something is rounded off what leaves, so that errors have to be kept."""
        if group.engine.all_local:
            return False
        if format_of(self._compression) is not QuantizedFormat.AUTO:
            return True
        return wire.device.type == "cpu" and group.quantizes_by_itself

    def _submit(
        self,
        group: Group,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        name: str,
        keep: object,
        prefix: str = "grouped_allreduce",
    ) -> Handle:
        return group.allreduce(
            buffers,
            buffers,
            reduction,
            name=name + self._suffix.within(group),
            prefix=prefix,
            call_site=self._settings.call_site,
            keep=keep,
        )

    def _reduction(self, weight: float | None) -> Reduction:
        settings = self._settings
        factor = settings.predivide_factor
        return Reduction(settings.op, 1.0 / factor, factor, weight)

    def _prepare(self, param: torch.Tensor, weight: float | None) -> SentDense:
        is_own = self._is_own(param)
        gradient = param.grad
        if gradient is None or weight == 0.0:
            # What has no weight may be infinite, as the mean over an empty batch.
            source = torch.zeros_like(param, requires_grad=False)
        else:
            source = _values_of(gradient)
        sent, context = compressed(self._compression, source)
        wire = dense(sent)
        if gradient is not None and not is_own and wire.data_ptr() == gradient.data_ptr():
            # The backward pass may still read this memory, or write another gradient into it.
            wire = wire.clone()
        return SentDense(param, gradient, wire, context, self._layouts.layout_of(param))

    def _send_sparse(
        self, group: Group, param: torch.Tensor, weight: float | None
    ) -> SparseGradientInFlight:
        settings = self._settings
        gradient = param.grad
        sparse_dim = self._layouts.sparse_dim(param)
        if gradient is None or weight == 0.0:
            source = empty_like(param, sparse_dim)
        elif gradient.layout is torch.strided:
            source = gradient.detach().to_sparse(sparse_dim)
        else:
            source = gradient
        exchange = SparseExchange(
            group, settings.op, settings.call_site, weight, settings.compression
        )
        in_flight = exchange.start(source, self.names[param] + self._suffix.within(group))
        return SparseGradientInFlight(param, gradient, in_flight)


def fill_bucket(
    bucket: GradientBucket, weight: float | None
) -> list[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]]:
    """Put the gradients of a bucket into their places, those that are missing as zeros.

    Returns:
        Each parameter with its gradient and its place, which may be the same tensor.
    """
    bucket.make_room()
    gradients = [(param, param.grad, bucket.place_of(param)) for param in bucket.params]
    for _, gradient, place in gradients:
        if gradient is None or weight == 0.0:
            place.zero_()
        elif gradient is not place:
            place.copy_(_values_of(gradient))
    return gradients


def _values_of(gradient: torch.Tensor) -> torch.Tensor:
    """The whole gradient without its graph; a copy if it has one, which may need its values."""
    values = gradient.detach()
    if values.layout is not torch.strided:
        return values.to_dense()
    return values.clone() if gradient.requires_grad else gradient


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
