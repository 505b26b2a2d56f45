"""Reduces gradients while the backward pass is still running.

Life of a gradient: the backward pass has added to it -> the hook counts the pass -> all members of
its group have their passes: *launched*, now *in flight* -> waited for -> written back. What cannot
be launched before the ranks know each other's layouts is *held* until the step. After the first
step, when the layouts are known, gradients move into buckets in shared memory if all ranks are on
one host; the members of a bucket are a group from then on.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from horovod._rank.reduction import ReduceOp
from horovod._train.gradient_layouts import Kind, LayoutAgreement
from horovod._train.gradient_usage import GradientUsage
from horovod._train.gradients import GradientSchedule
from horovod._train.optimizer_options import reduces
from horovod._train.parameter_names import NameSuffix
from horovod._train.process_set import ProcessSet, check_usable, group_of
from horovod._train.same_parameters import PendingParameterCheck
from horovod._train.weighted_passes import Shares, WeightedPasses
from horovod._train.weights import WeightSource, check_weighting
from horovod.errors import HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from horovod._rank.group import Group
    from horovod._train.gradient_layouts import Gradients
    from horovod._train.same_parameters import Parameter

P = TypeVar("P", bound=Hashable)
P_contra = TypeVar("P_contra", contravariant=True)
B = TypeVar("B", bound="Bucket[Any]")
B_co = TypeVar("B_co", bound="Bucket[Any]", covariant=True)

SPARSE_OPS = (ReduceOp.AVERAGE, ReduceOp.SUM)
"""The reductions in which a row that a rank does not have counts as zero."""


class GradientsInFlight(Protocol[P_contra]):
    """One operation that reduces gradients."""

    def wait(self) -> None:
        """Waits for its end; raises what went wrong."""

    def write_back(self, unused: Container[P_contra]) -> None:
        """Puts the results of the ended operation where the optimizer reads gradients.

        Args:
            unused: parameters that no rank has used, which are left without gradient.
        """


class Bucket(Protocol[P_contra]):
    """Gradients that are reduced as one array."""

    def take_in(self, param: P_contra) -> None:
        """Moves the gradient of a parameter into the bucket."""


class Buckets(Protocol[P, B_co]):
    """The buckets of one optimizer in one job."""

    def of(self, param: P) -> B_co | None:
        """The bucket that holds the gradient of a parameter."""

    @property
    def groups(self) -> list[tuple[P, ...]]:
        """Parameters that leave together."""

    def follow_memory(self) -> None:
        """Moves into shared memory if that is there now; called when nothing is in flight."""


class Observer(Protocol[P_contra]):
    """Looks at gradients before and after their reduction, in jobs of several ranks."""

    def before_reduction(self, params: Sequence[P_contra]) -> Any:
        """Return what to remember of gradients that are about to leave; called by any thread."""

    def after_reduction(self, remembered: Sequence[Any]) -> None:
        """Look at the reduced gradients, which the program has not changed yet.

        Args:
            remembered: what :meth:`before_reduction` has returned in this step.
        """


@dataclass(frozen=True)
class ReducerSettings:
    """The options with which the gradients of one optimizer are reduced.

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
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet
    call_site: str
    weight: WeightSource = None
    buckets: bool = True

    @property
    def may_travel_sparse(self) -> bool:
        """Whether sparse gradients may travel as such."""
        return self.op in SPARSE_OPS and not self.sparse_as_dense


class GradientReducer(ABC, Generic[P, B]):
    """Reduces gradients over the ranks and puts the results in place, as the adapter says how.

    Args:
        settings: how to reduce.
        gradients: of this rank.
        names: of all parameters that may ever be reduced.
        groups: trainable parameters that leave together, in the same order on all ranks.
        passes: backward passes per step.

    Attributes:
        reduced: whether the optimizer finds the reduced gradients of the current step.
        holds_reduced: the same, also after the step, until a gradient is added or dropped.
    """

    def __init__(
        self,
        settings: ReducerSettings,
        gradients: Gradients[P],
        names: dict[P, str],
        groups: Iterable[Sequence[P]],
        passes: int,
    ) -> None:
        self.reduced = False
        self.holds_reduced = False
        self._observer: Observer[P] | None = None
        # What the observer has returned in this step.
        self._observed: list[Any] = []
        self.names = names
        self._settings = settings
        self._gradients = gradients
        self._schedule: GradientSchedule[P] = GradientSchedule(passes)
        self._watched: dict[P, str] = {}
        self._in_flight: list[GradientsInFlight[P]] = []
        self._used: list[P] = []
        self._noted: list[P] = []
        self._has_unused = False
        self._usage: GradientUsage[P]
        self._telling = threading.Lock()
        self._left_dense: set[P] = set()
        self._held: list[Sequence[P]] = []
        self._buckets: Buckets[P, B] | None = None
        self._may_make_buckets = False
        self._may_differ = True
        self._check: PendingParameterCheck | None = None
        self._arrivals: dict[P, int] = {}
        self._groups: list[Sequence[P]] = []
        self._weight: WeightedPasses[P] = WeightedPasses(settings.weight)
        self._group: Group | None = None
        self._layouts: LayoutAgreement[P]
        # Optimizers over parameters of equal names may be in flight at the same time.
        self._suffix = NameSuffix(names.values())
        self._first_name = min(names.values())
        check_usable(settings.process_set)
        for members in groups:
            self._watch(members)
        self._described = [self._describe(name, param) for param, name in self._watched.items()]

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._schedule.passes

    @property
    def has_weight(self) -> bool:
        """Whether gradients have a weight now."""
        return self._weight.exists

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._settings.process_set

    @property
    def first_name(self) -> str:
        """What names this optimizer among others, on all ranks alike."""
        return self._first_name

    def observe(self, observer: Observer[P]) -> None:
        """Let an observer look at gradients before and after their reduction.

        Args:
            observer: replaces an earlier one.
        """
        self._observer = observer

    def reduce(self, params: Iterable[P]) -> None:
        """Launches what is missing, waits for everything and puts the results in place.

        Parameters without a gradient take part with zeros if other ranks ever had one. Those of
        which no rank has a gradient in this step stay without.

        Args:
            params: all parameters of the optimizer; newly trainable ones are watched from now on.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        self._launch_missing(params)
        observed = list(self._observed)
        self._finish(self._write_back)
        self.reduced = self.holds_reduced = True
        if self._observer is not None:
            self._observer.after_reduction(observed)

    def discard(self, params: Iterable[P]) -> None:
        """Begins a new step; waits for gradients in flight, as other ranks wait for them.

        Those of a job that has ended are forgotten: newcomers of the next one would not send them.
        """
        if self._in_flight or self._held:
            self._bind()  # in a new job, nothing is in flight behind it
            if self._in_flight or self._held:
                self._launch_missing(params)
        self._finish(_drop)
        self._hook_passes()

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
        self._hook_passes()

    def set_weight(self, weight: WeightSource) -> None:
        """Changes the weight of this rank's gradients from the next backward pass on.

        Raises:
            UsageError: it is no finite number of at least 0, it needs another reduction, gradients
                of this step have left with the old one, or only some passes would have a weight.
        """
        check_weighting(weight, self._settings.op)
        if self._in_flight:
            raise UsageError(
                "set_weight() after the backward pass: gradients have left with the old weight; "
                "call it before the last backward pass of the step"
            )
        self._weight.change(weight)
        self._hook_passes()

    def on_gradient(self, param: P) -> None:
        """Counts a backward pass that has added to the gradient; launches what is complete.

        Raises:
            AssertionError: more passes than agreed, or the gradient has a graph of its own.
            UsageError: the gradient cannot be sent.
            HorovodInternalError: the engine can no longer work.
        """
        self.reduced = self.holds_reduced = False
        group = self._bind()
        if self.passes > 1 and not self._weight.exists:
            self._weight.arrive_without_weight()
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
            is_known = all(map(self._layouts.is_known, members))
            if members and is_known and self._may_leave(members):
                self._launch(members)
            elif members:
                self._held.append(members)
            if self._is_use_final():
                self._tell_use(group)

    def weigh_pass(self, param: P, run: int, is_nested: Callable[[], bool]) -> Shares | None:
        """Says how a new gradient is added to the one that there is.

        Args:
            param: whose gradient it is.
            run, is_nested: of the backward function; see :meth:`BackwardPasses.begins`.

        Returns:
            None if it is just added.

        Raises:
            UsageError: the weight is no finite number of at least 0.
        """
        self._bind()
        if not self._weighs_passes:
            return None
        return self._weight.arrive(param, self.passes, run, is_nested)

    @property
    def _weighs_passes(self) -> bool:
        """Whether a step has several passes, of which each has a weight."""
        return self.passes > 1 and self._weight.exists

    def _hook_passes(self) -> None:
        """Weighs the passes of all parameters that can be trained now, also those not watched."""
        if self._weighs_passes:
            for param in self.names:
                self._hook_pass(param)

    def _watch(self, params: Sequence[P]) -> None:
        self._schedule.add_group(params)
        self._groups.append(params)
        self._watched.update((param, self.names[param]) for param in params)
        for param in params:
            self._hook(param)
        self._hook_passes()

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
                group, self._gradients, settings.may_travel_sparse, settings.call_site
            )
            self._usage = GradientUsage(group, settings.call_site)
            self._begin_step()
        return group

    def _begin_step(self) -> None:
        self._in_flight = []
        self._observed.clear()
        self._used.clear()
        self._noted.clear()
        self._has_unused = False
        self._left_dense.clear()
        self._held.clear()
        self._weight.begin_step()
        if self._group is not None:
            self._layouts.begin_step()
            self._usage.begin_step()
        self._schedule.reset()
        if self._buckets is not None:
            self._buckets.follow_memory()

    def _launch_missing(self, params: Iterable[P]) -> None:
        group = self._bind()
        for param in params:
            if self._is_trainable(param) and param not in self._schedule:
                self._watch((param,))
        if not reduces(group):
            self._complete_passes(self._watched)
            return
        if self._may_make_buckets:
            self._make_buckets()
        self._begin_check(group)
        self._ask_layouts(group)
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
        self._tell_use(group)

    def _tell_use(self, group: Group) -> None:
        """Tells what this rank has used, and asks about layouts, if it has not in this step.

        In the backward pass already if all is known then, so that ranks may step several optimizers
        in different orders.
        """
        with self._telling:  # a framework may have a thread for each device
            if not self._usage.is_told:
                self._tell_now(group)

    def _is_use_final(self) -> bool:
        """Whether all gradients of this step have been launched, those of frozen parameters aside.

        A parameter that can be trained but is not watched yet is launched in the step.
        """
        if len(self._noted) < len(self._watched):
            return False
        if len(self._watched) == len(self.names):
            return True
        kind, frozen = self._gradients.kind, self.names.keys() - self._watched.keys()
        return not any(self._is_trainable(p) or kind(p) is not Kind.NONE for p in frozen)

    def _ask_layouts(self, group: Group) -> None:
        name = self._name_of("layouts", group)
        places = partial(self._places, group)
        self._layouts.ask(name, self._watched, self._left_dense, places)

    def _tell_now(self, group: Group) -> None:
        try:
            self._ask_layouts(group)
            self._usage.tell(self._name_of("used", group), self.names, self._used)
        except HorovodInternalError:
            if not self._in_flight:  # whose failure says more
                raise

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

    def _make_buckets(self) -> None:
        """Puts gradients into buckets once the layouts are known: every rank between two steps.

        Ranks that have joined meanwhile do it when they are back, before their next gradient.
        """
        self._layouts.settle()
        self._may_make_buckets = False
        order = self._layouts.ready_order
        if not order or self._buckets is not None:
            return
        group = self._bind()
        self._buckets = self._new_buckets(group, order, self._name_of("buckets", group))
        rest = [members for members in self._groups if self._buckets.of(members[0]) is None]
        self._schedule.regroup([*self._buckets.groups, *rest])

    def _name_of(self, what: str, group: Group) -> str:
        """The name of an operation about all parameters together."""
        return f"{self._first_name}.{what}{self._suffix.within(group)}"

    def _bucket_of(self, param: P) -> B | None:
        return None if self._buckets is None else self._buckets.of(param)

    def _launch(self, members: Sequence[P]) -> None:
        group, weight = self._bind(), self._weight.of_step()
        self._complete_passes(members)
        if self._observer is not None:
            self._observed.append(self._observer.before_reduction(members))
        bucket = self._bucket_of(members[0])
        if bucket is not None:
            self._note_use(members, weight)
            self._in_flight.append(self._send_bucket(group, bucket, weight))
            return
        sparse = [param for param in members if self._layouts.travels_sparse(param)]
        whole = [param for param in members if self._layouts.travels_dense(param)]
        self._note_use([*whole, *sparse], weight)
        for part in self._by_device(whole):
            self._in_flight.append(self._send_dense(group, part, weight))
            self._left_dense.update(part)
        for param in sparse:
            self._in_flight.append(self._send_sparse(group, param, weight))

    def _note_use(self, members: Sequence[P], weight: float | None) -> None:
        """Remembers which gradients this rank contributes, and whether it lacks some."""
        kind = self._gradients.kind
        used = [] if weight == 0.0 else [p for p in members if kind(p) is not Kind.NONE]
        self._used += used
        self._has_unused = self._has_unused or len(used) < len(members)
        self._noted += members  # last, as other threads look at it

    def _complete_passes(self, params: Iterable[P]) -> None:
        if self._weighs_passes:
            for param in params:
                kept = self._weight.complete(param)
                if kept is not None:
                    self._complete_pass(param, kept)

    def _finish(self, take: Callable[[GradientsInFlight[P]], None]) -> None:
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
            if self._group is not None:
                # A rank may leave after its step: it must not break off what others are still in.
                self._layouts.wait()
                self._usage.wait()
        except HorovodInternalError as error:
            failure = failure or error
        finally:
            self.reduced = self.holds_reduced = False
            self._begin_step()
        if failure is not None:
            raise failure

    def _write_back(self, gradients: GradientsInFlight[P]) -> None:
        gradients.write_back(self._usage.unused() if self._has_unused else frozenset())

    @abstractmethod
    def _hook(self, param: P) -> None:
        """Calls :meth:`on_gradient` whenever a backward pass has added to a gradient."""

    @abstractmethod
    def _hook_pass(self, param: P) -> None:
        """Calls :meth:`weigh_pass` before a backward pass adds to a gradient; once is enough."""

    @abstractmethod
    def _complete_pass(self, param: P, kept: float) -> None:
        """Multiplies what the passes of this step have left, and adds what there was before."""

    @abstractmethod
    def _is_trainable(self, param: P) -> bool:
        """Whether the parameter gets gradients now."""

    @abstractmethod
    def _may_leave(self, params: Sequence[P]) -> bool:
        """Return whether gradients are final after their own backward functions."""

    @abstractmethod
    def _describe(self, name: str, param: P) -> Parameter:
        """Return the properties of a parameter that must be the same on all ranks."""

    @abstractmethod
    def _places(self, group: Group) -> Mapping[P, int]:
        """The order in which gradients came, of those that can live in a bucket."""

    @abstractmethod
    def _new_buckets(self, group: Group, order: Sequence[P], name: str) -> Buckets[P, B]:
        """Lays gradients into buckets, in the order in which they become ready."""

    @abstractmethod
    def _by_device(self, params: Sequence[P]) -> Iterable[Sequence[P]]:
        """Divides parameters into those that one operation can hold."""

    @abstractmethod
    def _send_bucket(self, group: Group, bucket: B, weight: float | None) -> GradientsInFlight[P]:
        """Reduces gradients where they lie."""

    @abstractmethod
    def _send_dense(
        self, group: Group, params: Sequence[P], weight: float | None
    ) -> GradientsInFlight[P]:
        """Reduces gradients as wholes, in one operation."""

    @abstractmethod
    def _send_sparse(self, group: Group, param: P, weight: float | None) -> GradientsInFlight[P]:
        """Reduces a gradient by its elements."""


def _drop(_: GradientsInFlight[Any]) -> None:
    """Leaves the gradients as it is."""
