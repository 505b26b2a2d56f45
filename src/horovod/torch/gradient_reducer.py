"""Reduces the gradients of PyTorch parameters, as :mod:`horovod._train.gradient_reducer` says."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

import torch

from horovod._train import gradient_reducer
from horovod._train.gradient_buckets import GradientBuckets, plan_gradient_buckets
from horovod.torch.backward_runs import current_run, is_nested
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.devices import by_device
from horovod.torch.gradient_buckets import GradientBucket, extent_of, may_live_in_bucket
from horovod.torch.gradient_layouts import ParameterGradients
from horovod.torch.gradients_in_flight import (
    BucketInFlight,
    DenseInFlight,
    SentDense,
    SparseGradientInFlight,
)
from horovod.torch.sparse import SparseExchange, empty_like
from horovod.torch.tensor_holders import CAN_TELL, is_own_gradient, sharing_memory
from horovod.torch.tensors import dense, memory_of, parameter_of, views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.utils.hooks import RemovableHandle

    from horovod._native import Buffer, Handle
    from horovod._rank.group import Group
    from horovod._train.gradient_reducer import ReducerSettings
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
        super().__init__(settings, ParameterGradients(), names, groups, passes)

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
            and settings.compression is Compression.none
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
    ) -> BucketInFlight:
        bucket.make_room()
        gradients = [(param, param.grad, bucket.place_of(param)) for param in bucket.params]
        for _, gradient, place in gradients:
            if gradient is None or weight == 0.0:
                place.zero_()
            elif gradient is not place:
                place.copy_(_values_of(gradient))
        handle = self._submit(group, (bucket.buffer,), weight, bucket.name, bucket.memory)
        return BucketInFlight(handle, gradients)

    def _send_dense(
        self, group: Group, params: Sequence[torch.Tensor], weight: float | None
    ) -> DenseInFlight:
        sent = [self._prepare(param, weight) for param in params]
        wires = [item.wire for item in sent]
        prefix = "allreduce" if len(params) == 1 else "grouped_allreduce"
        name, keep = self.names[params[0]], memory_of(wires)
        handle = self._submit(group, views(wires), weight, name, keep, prefix)
        return DenseInFlight(handle, sent, self._settings.compression)

    def _submit(
        self,
        group: Group,
        buffers: Sequence[Buffer],
        weight: float | None,
        name: str,
        keep: object,
        prefix: str = "grouped_allreduce",
    ) -> Handle:
        settings = self._settings
        return group.allreduce(
            buffers,
            buffers,
            op=settings.op,
            prescale=1.0 / settings.predivide_factor,
            postscale=settings.predivide_factor,
            weight=weight,
            name=name + self._suffix.within(group),
            prefix=prefix,
            call_site=settings.call_site,
            keep=keep,
        )

    def _prepare(self, param: torch.Tensor, weight: float | None) -> SentDense:
        is_own = self._is_own(param)
        gradient = param.grad
        if gradient is None or weight == 0.0:
            # What has no weight may be infinite, as the mean over an empty batch.
            source = torch.zeros_like(param, requires_grad=False)
        else:
            source = _values_of(gradient)
        compressed, context = self._settings.compression.compress(source)
        wire = dense(compressed)
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


def _values_of(gradient: torch.Tensor) -> torch.Tensor:
    """The whole gradient without its graph; a copy if it has one, which may need its values."""
    values = gradient.detach()
    if values.layout is not torch.strided:
        return values.to_dense()
    return values.clone() if gradient.requires_grad else gradient


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
