"""DistributedOptimizer: an optimizer whose gradients are reduced over all ranks."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from horovod._rank import context
from horovod._rank.reduction import ReduceOp
from horovod._train.call_site import call_site
from horovod._train.compression import check_quantizes
from horovod._train.gradient_reducer import ReducerSettings
from horovod._train.gradients import check_passes
from horovod._train.optimizer_options import (
    checked_reduction,
    groups_asked_for,
    warn_of_plain_copy,
)
from horovod._train.parameter_names import make_groups, name_parameters
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Adasum, Average
from horovod._train.weights import check_weighting
from horovod.errors import UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.delta_reducer import DeltaReducer
from horovod.torch.error_feedback import ErrorFeedback
from horovod.torch.gradient_reducer import GradientReducer
from horovod.torch.local_steps import LocalStepsOptimizer
from horovod.torch.powersgd import LowRankMemory, PowerSGDCompressor
from horovod.torch.sync_check import SampledSyncCheck
from horovod.torch.tensors import check_sums
from horovod.torch.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horovod._train.compression import CompressorLike
    from horovod._train.weights import WeightSource

__all__ = ["DistributedOptimizer"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_FEEDBACKS = (ErrorFeedback.key, LowRankMemory.key)
SCALER_MODULES = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")


class ReducingOptimizer(torch.optim.Optimizer):
    """The methods that :func:`DistributedOptimizer` adds to the class of the given optimizer.

    For a type checker a wrapped optimizer is of that class; behind ``assert isinstance(optimizer,
    ReducingOptimizer)`` it sees what is added, too.

    Attributes:
        op, gradient_predivide_factor, sparse_as_dense, process_set: as given to the factory.
    """

    op: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _reducer: GradientReducer | DeltaReducer
    _wrapped: torch.optim.Optimizer
    _sync_check: SampledSyncCheck
    _synchronized: bool
    _skips: bool

    @property
    def backward_passes_per_step(self) -> int:
        """After how many backward passes a gradient is reduced."""
        return self._reducer.passes

    @property
    def has_weight(self) -> bool:
        """Whether this rank's gradients have a weight in the average."""
        return isinstance(self._reducer, GradientReducer) and self._reducer.has_weight

    @property
    def _feedback(self) -> ErrorFeedback | LowRankMemory | None:
        return self._reducer.feedback if isinstance(self._reducer, GradientReducer) else None

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return self._reducer.names

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of parameters and their options, shared with the wrapped optimizer."""
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        # GradScaler knows nothing of reductions in flight: what it unscales must have arrived.
        if (
            not self._reducer.reduced
            and sys._getframe(1).f_globals.get("__name__") in SCALER_MODULES
        ):
            self._before_unscaling()
            self._reducer.reduce(parameters_of(groups))
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    @outside_of_graphs
    def synchronize(self) -> None:
        """Waits until ``p.grad`` of every parameter holds the reduced gradient.

        Call it to change gradients before the step, and then step inside :meth:`skip_synchronize`.

        Raises:
            HorovodInternalError: a reduction failed.

        Example:
            >>> loss.backward()
            >>> optimizer.synchronize()
            >>> torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            >>> with optimizer.skip_synchronize():
            ...     optimizer.step()
        """
        self._reducer.reduce(parameters_of(self.param_groups))
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which :meth:`step` does not call :meth:`synchronize`.

        Raises:
            AssertionError: with op=Adasum, which reduces no gradients.
        """
        if isinstance(self._reducer, DeltaReducer):
            raise AssertionError(
                "skip_synchronize() with op=Adasum: gradients are not reduced, so there is nothing "
                "to skip; call step() alone"
            )
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    @outside_of_graphs
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients that are still missing, then takes the optimizer's step.

        Args:
            closure: recomputes the loss and its gradients, which are reduced after each call.

        Returns:
            What the wrapped class returns: the loss of the closure, or None.

        Raises:
            HorovodInternalError: a reduction failed; no parameter was changed.
        """
        synchronized = self._synchronized and self._reducer.reduced
        self._synchronized = False
        if self._skips:
            return self._plain_step(closure)
        if synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): gradients are reduced twice. Put step() inside "
                "`with optimizer.skip_synchronize():`",
                stacklevel=2,
            )
        if closure is not None:
            return self._plain_step(self._reducing(closure))
        if synchronized or not self._reducer.reduced:
            self._reducer.reduce(parameters_of(self.param_groups))
        return self._plain_step(None)

    # torch.optim.Optimizer wraps a step without this mark, and its step hooks would run twice.
    step.hooked = True  # type: ignore[attr-defined]

    @outside_of_graphs
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, also those in flight, and begins to count backward passes anew.

        Args:
            set_to_none: set ``p.grad`` to None instead of filling it with zeros.

        Raises:
            HorovodInternalError: a reduction in flight failed.
        """
        self._reducer.discard(parameters_of(self.param_groups))
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes after how many backward passes gradients are reduced; counting begins anew.

        Raises:
            UsageError: ``passes`` is below 1.
        """
        self._reducer.set_passes(check_passes(passes))

    def set_weight(self, weight: WeightSource) -> None:
        """Changes the weight of this rank's gradients in the average; see DistributedOptimizer.

        Call it before the backward pass of the batch that it belongs to.

        Args:
            weight: at least 0, such as the number of samples in the batch; or what returns it.

        Raises:
            UsageError: it is negative or not finite, the reduction is no average, gradients of
                this step have left already, or only some passes of this step would have a weight.
        """
        self._reducer.set_weight(weight)

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, and what compression has rounded off this rank's gradients."""
        state = super().state_dict()
        feedback = self._feedback
        if feedback is not None:
            state[feedback.key] = feedback.state_dict(_own_rank())
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads options and state; gradients in flight and the counts of passes are forgotten.

        What compression has rounded off is that of one rank: it is taken from a state that the rank
        of this number has saved, and begins at zero with any other.
        """
        self._reducer.abandon()
        self._synchronized = False
        feedback = self._feedback
        if feedback is not None:
            feedback.load_state_dict(state_dict.get(feedback.key), _own_rank())
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in _FEEDBACKS})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters; they are reduced from the next step on, one by one.

        Raises:
            UsageError: a parameter is complex, and the reduction is neither Average nor Sum.
        """
        super().add_param_group(param_group)
        groups = self.param_groups
        try:
            check_sums(ReduceOp(self.op), groups[-1]["params"])
        except UsageError:
            groups.pop()
            raise
        for index, param in enumerate(groups[-1]["params"]):
            self._reducer.names.setdefault(param, f"allreduce.noname.{len(groups) - 1}.{index}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain optimizers, which load without Horovod; they say so."""
        warn_of_plain_copy(self.process_set, stacklevel=3)
        return object.__new__, (type(self._wrapped),), self.__getstate__()

    def _before_unscaling(self) -> None:
        """Called before a GradScaler gets gradients that have not arrived yet."""

    def _plain_step(self, closure: Callable[[], Any] | None) -> Any:
        result = self._local_step(closure)
        self._keep_errors()
        self._reducer.reduced = False
        # A learning rate scheduler made before the wrapping looks for its own optimizer's steps.
        self._wrapped._opt_called = True  # type: ignore[attr-defined]
        context.count_step()
        self._sync_check.after_step(self.param_groups)
        return result

    def _local_step(self, closure: Callable[[], Any] | None) -> Any:
        return super().step() if closure is None else super().step(closure)

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reducing_closure() -> Any:
            loss = closure()
            self._reducer.reduce(parameters_of(self.param_groups))
            self._keep_errors()
            return loss

        return reducing_closure

    def _keep_errors(self) -> None:
        feedback = self._feedback
        found = getattr(self, "found_inf", None)  # GradScaler lets a fused optimizer skip the step
        if feedback is not None and not found:
            feedback.keep()


class DeltaOptimizer(ReducingOptimizer):
    """The form for op=Adasum: each rank steps by its own gradients, then the steps are combined.

    ``p.grad`` holds this rank's gradients all the time, so they can be clipped or changed between
    the backward pass and the step without further ado.
    """

    _reducer: DeltaReducer

    @outside_of_graphs
    def synchronize(self) -> None:
        """Does nothing, as gradients are not reduced."""

    @outside_of_graphs
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step by this rank's gradients, then combines all ranks' steps.

        Args:
            closure: computes the loss and its gradients anew.

        Returns:
            What the wrapped class returns: the loss of the closure, or None.

        Raises:
            HorovodInternalError: a reduction failed; parameters hold this rank's own step.
        """
        return self._plain_step(closure)

    step.hooked = True  # type: ignore[attr-defined]

    def _local_step(self, closure: Callable[[], Any] | None) -> Any:
        before = self._reducer.snapshot(parameters_of(self.__dict__["param_groups"]))
        result = super()._local_step(closure)
        self._reducer.exchange(before)
        return result


def DistributedOptimizer(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: CompressorLike = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    weight: WeightSource = None,
    gradient_buckets: bool | None = None,
    shard_state: bool = False,
) -> OptimizerT:
    """Wraps an optimizer so that each step uses the gradients of all ranks.

    Gradients are reduced while the backward pass still runs. A parameter that no rank has used in a
    step has none; ranks that have not used one that others have count as zeros. The result is an
    instance of the same class (by name and ``isinstance``) that shares parameter groups and state
    with ``optimizer``; use it instead of ``optimizer``.

    Args:
        optimizer: any torch optimizer; its parameters are on the CPU or on GPUs.
        named_parameters: ``model.named_parameters()``; must name each parameter of the optimizer,
            with the same names on all ranks. None names them by their place.
        compression: how gradients travel: Compression.none, fp16, bf16, your own; or in 8 bits
            between hosts, with error feedback (docs/compression.md): int8, fp8, fp8_e5m2; auto for
            int8 or none; powersgd(rank) for matrices of low rank.
        backward_passes_per_step: after how many backward passes gradients are reduced. The passes
            are summed, not averaged. With a weight, each counts by its own: the sum is as many
            times the mean over the samples of all passes and ranks as a step has passes.
        op: Average or another reduction. With Adasum each rank steps by its own gradients, and
            the changes of the parameters are reduced; of the arguments below, only ``process_set``
            counts then.
        gradient_predivide_factor: divide by this before the sum, and by the rest after it.
        num_groups: deprecated name of ``groups``.
        groups: reduce parameters in groups, each as one operation: a number of groups of
            consecutive parameters, or a list of lists of parameters (the others go one by one).
            With a number, all ranks must construct the optimizer together: rank 0 tells the order.
        sparse_as_dense: send sparse gradients as dense ones. Otherwise their elements travel,
            unless the ranks together have so many that the whole is smaller; the ranks decide this
            after the first backward pass. They are sparse again in ``p.grad``.
        process_set: the ranks that take part.
        weight: of this rank's gradients in the average, such as the number of samples in its
            batches: a number of at least 0, or what returns it, called once per backward pass. A
            rank of weight 0 may have any gradients. None on all ranks: all alike. See also
            set_weight.
        gradient_buckets: whether ``p.grad`` may lie in memory that all ranks of the host see,
            unless it is a view of a larger array or somebody else refers to it; the same on all
            ranks. None as HOROVOD_GRADIENT_BUCKETS says.
        shard_state: whether each rank keeps and steps its share of the optimizer state alone (ZeRO
            stage 1, docs/shard_state.md): ``state_dict()`` is a collective then, and gradients are
            clipped by ``hvd.clip_grad_norm_``.

    Raises:
        UsageError: the arguments are wrong.
        HorovodInternalError: ``groups`` is a number and the ranks name different parameters.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    """
    site = call_site()
    _check_unwrapped(optimizer)
    reduce_op = checked_reduction(op, gradient_predivide_factor)
    check_weighting(weight, reduce_op)
    check_passes(backward_passes_per_step)
    names = name_parameters(optimizer.param_groups, named_parameters)
    groups = groups_asked_for(num_groups, groups)
    buckets = context.settings().gradient_buckets if gradient_buckets is None else gradient_buckets
    how = reduce_op, gradient_predivide_factor, compression, sparse_as_dense
    settings = ReducerSettings(*how, process_set, site, weight, buckets)
    wrapping = _sharing if shard_state else _reducing
    return cast(
        "OptimizerT", wrapping(optimizer, names, groups, backward_passes_per_step, settings)
    )


def _check_unwrapped(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, ReducingOptimizer):
        raise UsageError("the optimizer is a DistributedOptimizer already")
    if isinstance(optimizer, LocalStepsOptimizer):
        raise UsageError(
            "with LocalSGD and DiLoCo each rank trains alone between two exchanges, so gradients "
            "must not be reduced; wrap a DistributedOptimizer over some ranks in LocalSGD instead"
        )


def _reducing(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    passes: int,
    settings: ReducerSettings,
) -> ReducingOptimizer:
    check_sums(settings.op, list(names))
    check_quantizes(settings.compression, settings.op)
    _check_low_rank(settings, groups)
    if settings.op is Adasum:
        deltas = DeltaReducer(settings, names, passes)
        return _wrap(optimizer, DeltaOptimizer, deltas, settings)
    trainable = [p for p in parameters_of(optimizer.param_groups) if p.requires_grad]
    members = make_groups(
        trainable, names, groups, settings.process_set, settings.call_site, torch.Tensor
    )
    reducer = GradientReducer(settings, names, members, passes)
    return _wrap(optimizer, ReducingOptimizer, reducer, settings)


def _check_low_rank(
    settings: ReducerSettings, groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> None:
    if not isinstance(settings.compression, PowerSGDCompressor):
        return
    if settings.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            f"Compression.powersgd is for op=Average and op=Sum, not for {settings.op.name}; use "
            "Compression.none"
        )
    if groups is not None:
        raise UsageError(
            "Compression.powersgd with groups: each gradient becomes two matrices of its own; "
            "leave groups out"
        )


def _sharing(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    passes: int,
    settings: ReducerSettings,
) -> ReducingOptimizer:
    if groups is not None:
        raise UsageError(
            "shard_state=True with groups: the shares decide what is reduced together; leave "
            "groups out"
        )
    from horovod.torch.sharded_optimizer import shard_optimizer  # which is built on this module

    return shard_optimizer(optimizer, names, passes, settings)


def _wrap(
    optimizer: torch.optim.Optimizer,
    form: type[ReducingOptimizer],
    reducer: GradientReducer | DeltaReducer,
    settings: ReducerSettings,
) -> ReducingOptimizer:
    wrapped = wrap(optimizer, form)
    wrapped._reducer = reducer
    wrapped._wrapped = optimizer
    wrapped._sync_check = SampledSyncCheck.configured(settings.process_set, reducer.names)
    wrapped._synchronized = False
    wrapped._skips = False
    wrapped.op = settings.op
    wrapped.gradient_predivide_factor = settings.predivide_factor
    wrapped.sparse_as_dense = settings.sparse_as_dense
    wrapped.process_set = settings.process_set
    return wrapped


def _own_rank() -> int:
    """Return this rank, or -1, which is nobody's, without a job."""
    return context.rank() if context.is_initialized() else -1


def parameters_of(groups: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    """Return the parameters of all groups, in order."""
    return [param for group in groups for param in group["params"]]
