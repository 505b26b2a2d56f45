"""Reduces gradients while the backward pass is still running.

Life of a gradient: the backward pass has added to ``p.grad`` -> the hook counts the pass -> all
members of its group have their passes: *launched*, now *in flight* -> waited for -> written back
into ``p.grad``. What cannot be launched before the ranks know each other's layouts is *held* until
the step. After the first step, when the layouts are known, gradients move into buckets in shared
memory if all ranks are on one host; the members of a bucket are a group from then on.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from horovod.errors import HorovodInternalError, UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.devices import by_device
from horovod.torch.gradient_buckets import (
    GradientBuckets,
    may_live_in_bucket,
    plan_gradient_buckets,
)
from horovod.torch.gradient_layouts import ParameterGradients
from horovod.torch.gradients_in_flight import (
    BucketInFlight,
    DenseInFlight,
    GradientsInFlight,
    SentDense,
    SparseGradientInFlight,
)
from horovod.torch.sparse import SPARSE_OPS, SparseExchange, empty_like
from horovod.torch.tensors import dense, memory_of, parameter_of, views
from horovod.train.gradient_layouts import LayoutAgreement
from horovod.train.gradients import GradientSchedule
from horovod.train.optimizer_options import reduces
from horovod.train.parameter_names import NameSuffix
from horovod.train.process_set import ProcessSet, group_of
from horovod.train.same_parameters import PendingParameterCheck
from horovod.train.weights import GradientWeight, WeightSource, check_weighting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.hooks import RemovableHandle

    from horovod._native import Buffer, Handle
    from horovod.group import Group, ReduceOp
    from horovod.torch.compression import Compressor
    from horovod.torch.gradient_buckets import GradientBucket


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
        weight: of this rank's gradients in the average.
        buckets: whether gradients may live in shared memory.
    """

    op: ReduceOp
    predivide_factor: float
    compression: type[Compressor] | Compressor
    sparse_as_dense: bool
    process_set: ProcessSet
    call_site: str
    weight: WeightSource = None
    buckets: bool = True

    @property
    def may_travel_sparse(self) -> bool:
        """Whether sparse gradients may travel as such."""
        return self.op in SPARSE_OPS and not self.sparse_as_dense


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
        self._watched: dict[torch.Tensor, str] = {}
        self._in_flight: list[GradientsInFlight] = []
        self._left_dense: set[torch.Tensor] = set()
        self._held: list[Sequence[torch.Tensor]] = []
        self._buckets: GradientBuckets | None = None
        self._may_make_buckets = False
        self._may_differ = True
        self._check: PendingParameterCheck | None = None
        self._arrivals: dict[torch.Tensor, int] = {}
        self._groups: list[Sequence[torch.Tensor]] = []
        self._weight = GradientWeight(settings.weight)
        self._group: Group | None = None
        self._layouts: LayoutAgreement[torch.Tensor]
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks).atexit = False
        # Optimizers over parameters of equal names may be in flight at the same time.
        self._suffix = NameSuffix(names.values())
        self._first_name = min(names.values())
        self._bind()
        for members in groups:
            self._watch(members)
        self._described = [parameter_of(name, param) for param, name in self._watched.items()]

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._schedule.passes

    def reduce(self, params: Iterable[torch.Tensor]) -> None:
        """Launches what is missing, waits for everything and writes the results into ``p.grad``.

        Parameters without a gradient take part with zeros if other ranks ever had one.

        Args:
            params: all parameters of the optimizer; newly trainable ones are watched from now on.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        self._launch_missing(params)
        self._finish(_write_back)
        self.reduced = True

    def discard(self, params: Iterable[torch.Tensor]) -> None:
        """Begins a new step; waits for gradients in flight, as other ranks wait for them."""
        if self._in_flight or self._held:
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
        self._finish(_write_back)
        self._schedule.reset(passes)

    def set_weight(self, weight: WeightSource) -> None:
        """Changes the weight of this rank's gradients from the next step on.

        Raises:
            UsageError: it is no finite number of at least 0, it needs another reduction, or
                gradients of this step have left with the old one.
        """
        check_weighting(weight, self._settings.op)
        if self._in_flight:
            raise UsageError(
                "set_weight() after the backward pass: gradients have left with the old weight; "
                "call it before the last backward pass of the step"
            )
        self._weight.change(weight)

    def on_gradient(self, param: torch.Tensor) -> None:
        """Counts a backward pass that has added to ``param.grad``; launches what is complete.

        Raises:
            AssertionError: more passes than agreed, or the gradient has a graph of its own.
            UsageError: the gradient cannot be sent.
            HorovodInternalError: the engine can no longer work.
        """
        self.reduced = False
        group = self._bind()
        if reduces(group):
            if self._may_make_buckets:
                self._make_buckets()
            self._begin_check(group)
            members = self._schedule.arrived(param)
            bucket = self._bucket_of(param)
            if bucket is not None:
                bucket.take_in(param)
            else:
                self._arrivals.setdefault(param, len(self._arrivals))
            if members and all(map(self._layouts.is_known, members)):
                self._launch(members)
            elif members:
                self._held.append(members)

    def _watch(self, params: Sequence[torch.Tensor]) -> None:
        reference = weakref.ref(self)

        @outside_of_graphs
        def hook(param: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.on_gradient(param)

        self._schedule.add_group(params)
        self._groups.append(params)
        self._watched.update((param, self.names[param]) for param in params)
        for param in params:
            handle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._hooks.append(handle)

    def _bind(self) -> Group:
        """The group in use; a new one after ``hvd.shutdown()`` and ``hvd.init()``."""
        settings = self._settings
        group = group_of(settings.process_set)
        if group is not self._group:
            self._group = group
            self._buckets = None
            self._may_make_buckets = False
            self._may_differ = True
            self._check = None
            self._arrivals.clear()
            self._schedule.regroup(self._groups)
            self._layouts = LayoutAgreement(
                group, ParameterGradients(), settings.may_travel_sparse, settings.call_site
            )
            self._begin_step()
        return group

    def _begin_step(self) -> None:
        self._in_flight = []
        self._left_dense.clear()
        self._held.clear()
        self._weight.begin_step()
        self._layouts.begin_step()
        self._schedule.reset()
        if self._buckets is not None:
            self._buckets.follow_memory()

    def _launch_missing(self, params: Iterable[torch.Tensor]) -> None:
        group = self._bind()
        for param in params:
            if param.requires_grad and param not in self._schedule:
                self._watch((param,))
        if not reduces(group):
            return
        if self._may_make_buckets:
            self._make_buckets()
        self._begin_check(group)
        name = self._name_of("layouts", group)
        self._layouts.ask(name, self._watched, self._left_dense, self._places(group))
        unknown = []
        for members in (*self._held, *self._schedule.take_missing()):
            if all(map(self._layouts.is_known, members)):
                self._launch(members)
            else:
                unknown.append(members)
        self._held.clear()
        self._may_make_buckets = self._buckets is None
        self._finish_check()
        if unknown:
            self._layouts.settle()
        for members in unknown:
            self._launch(members)

    def _begin_check(self, group: Group) -> None:
        """In the first step of all ranks: whether they reduce the same parameters.

        With the first gradient, so that ranks may step several optimizers in different orders.
        """
        if self._may_differ and self._check is None:
            name, site = self._name_of("parameters", group), self._settings.call_site
            self._check = PendingParameterCheck(group, self._described, name, site)

    def _finish_check(self) -> None:
        check, self._check = self._check, None
        if check is not None:
            self._may_differ = not check.finish()

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

    def _make_buckets(self) -> None:
        """Puts gradients into buckets once the layouts are known: every rank between two steps.

        Ranks that have joined meanwhile do it when they are back, before their next gradient.
        """
        self._layouts.settle()
        self._may_make_buckets = False
        order = self._layouts.ready_order
        if not order or self._buckets is not None:
            return
        plan = plan_gradient_buckets(order, [group for group in self._groups if len(group) > 1])
        group = self._bind()
        name = self._name_of("buckets", group)
        self._buckets = GradientBuckets(group, plan, self.names, name, self._settings.call_site)
        rest = [group for group in self._groups if self._buckets.of(group[0]) is None]
        self._schedule.regroup([*self._buckets.groups, *rest])

    def _name_of(self, what: str, group: Group) -> str:
        """The name of an operation about all parameters together."""
        return f"{self._first_name}.{what}{self._suffix.within(group)}"

    def _bucket_of(self, param: torch.Tensor) -> GradientBucket | None:
        return None if self._buckets is None else self._buckets.of(param)

    def _launch(self, members: Sequence[torch.Tensor]) -> None:
        group, weight = self._bind(), self._weight.of_step()
        bucket = self._bucket_of(members[0])
        if bucket is not None:
            self._launch_bucket(group, bucket, weight)
            return
        sparse = [param for param in members if self._layouts.travels_sparse(param)]
        whole = [param for param in members if self._layouts.travels_dense(param)]
        for members in by_device(whole):
            self._launch_dense(group, members, weight)
        for param in sparse:
            self._launch_sparse(group, param, weight)

    def _launch_bucket(self, group: Group, bucket: GradientBucket, weight: float | None) -> None:
        elsewhere = []
        for param in bucket.params:
            gradient = self._gradient(param)
            place = bucket.place_of(param)
            if gradient is None or weight == 0.0:
                place.zero_()
            elif gradient is not place:
                place.copy_(gradient if gradient.layout is torch.strided else gradient.to_dense())
            if gradient is not place:
                elsewhere.append((param, gradient, place))
        handle = self._submit(group, (bucket.buffer,), weight, bucket.name, bucket.memory)
        self._in_flight.append(BucketInFlight(handle, elsewhere))

    def _launch_dense(
        self, group: Group, params: Sequence[torch.Tensor], weight: float | None
    ) -> None:
        sent = [self._prepare(param, weight) for param in params]
        wires = [item.wire for item in sent]
        prefix = "allreduce" if len(params) == 1 else "grouped_allreduce"
        name, keep = self.names[params[0]], memory_of(wires)
        handle = self._submit(group, views(wires), weight, name, keep, prefix)
        self._in_flight.append(DenseInFlight(handle, sent, self._settings.compression))
        self._left_dense.update(params)

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
        gradient = self._gradient(param)
        if gradient is None or weight == 0.0:
            # What has no weight may be infinite, as the mean over an empty batch.
            source = torch.zeros_like(param, requires_grad=False)
        else:
            source = gradient if gradient.layout is torch.strided else gradient.to_dense()
        compressed, context = self._settings.compression.compress(source)
        layout = self._layouts.layout_of(param)
        return SentDense(param, gradient, dense(compressed), context, layout)

    def _launch_sparse(self, group: Group, param: torch.Tensor, weight: float | None) -> None:
        settings = self._settings
        gradient = self._gradient(param)
        sparse_dim = self._layouts.sparse_dim(param)
        if gradient is None or weight == 0.0:
            source = empty_like(param, sparse_dim)
        elif gradient.layout is torch.strided:
            source = gradient.to_sparse(sparse_dim)
        else:
            source = gradient
        exchange = SparseExchange(
            group, settings.op, settings.call_site, weight, settings.compression
        )
        in_flight = exchange.start(source, self.names[param] + self._suffix.within(group))
        self._in_flight.append(SparseGradientInFlight(param, gradient, in_flight))

    def _gradient(self, param: torch.Tensor) -> torch.Tensor | None:
        gradient = param.grad
        if gradient is not None and gradient.requires_grad:
            raise AssertionError(
                f"the gradient of {self.names[param]!r} has a graph of its own; use "
                "torch.autograd.grad, as DistributedOptimizer does not support "
                "backward(create_graph=True)"
            )
        return gradient

    def _finish(self, take: Callable[[GradientsInFlight], None]) -> None:
        """Waits for everything in flight and begins a new step, also when something failed."""
        in_flight, self._in_flight = self._in_flight, []
        failure: HorovodInternalError | None = None
        try:
            for gradients in in_flight:
                try:
                    gradients.wait()
                    take(gradients)
                except HorovodInternalError as error:
                    failure = failure or error
        finally:
            self.reduced = False
            self._begin_step()
        if failure is not None:
            raise failure


def _write_back(gradients: GradientsInFlight) -> None:
    gradients.write_back()


def _drop(_: GradientsInFlight) -> None:
    """Leaves ``p.grad`` as it is."""


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
