"""LocalSGD and DiLoCo: ranks train alone for some steps, then average what they have changed."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from horovod._rank import context
from horovod._train import objects
from horovod._train.call_site import call_site
from horovod._train.compression import refuse_quantizing
from horovod._train.optimizer_options import warn_of_plain_copy
from horovod._train.outer_schedule import OuterSchedule
from horovod._train.parameter_names import name_parameters
from horovod._train.process_set import global_process_set, group_of
from horovod.errors import UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.outer_steps import OuterSteps
from horovod.torch.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horovod._train.compression import CompressorLike
    from horovod._train.process_set import ProcessSet

__all__ = ["DiLoCo", "LocalSGD"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_STATE = "horovod_outer_steps"
_logger = logging.getLogger("horovod")


class LocalStepsOptimizer(torch.optim.Optimizer):
    """The methods that :func:`LocalSGD` and :func:`DiLoCo` add to the class of an optimizer."""

    process_set: ProcessSet
    _inner: torch.optim.Optimizer
    _plain: torch.optim.Optimizer
    _outer_steps: OuterSteps
    # GradScaler then calls step() also where gradients are not finite: ranks count the same steps.
    _step_supports_amp_scaling = True

    @property
    def outer_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the outer parameters, for example for a schedule; None for LocalSGD."""
        return self._outer_steps.optimizer

    def outer_parameters(self) -> list[torch.Tensor]:
        """Return the parameters that all ranks share, in the order of the optimizer.

        They are those of the last exchanges, and have the same bits on all ranks.
        """
        return [outer.detach() for outer in self._outer_steps.outer]

    @outside_of_graphs
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step by this rank's gradients, and exchange changes if it is time.

        All ranks must take the same number of steps, or call ``hvd.join()`` when they end sooner.

        Args:
            closure: recomputes the loss and its gradients.

        Returns:
            What the wrapped class returns: the loss of the closure, or None.

        Raises:
            ReplicasDivergedError: at the first step, if the ranks have different parameters.
            UsageError: a parameter is trained that was not when the optimizer was made.
            HorovodInternalError: an exchange failed.
        """
        self._outer_steps.begin()
        result = None if self._skips_for_scaler() else self._inner_step(closure)
        # A learning rate scheduler made before the wrapping looks for its own optimizer's steps.
        self._inner._opt_called = True  # type: ignore[attr-defined]
        if self._inner is self._plain:  # a DistributedOptimizer counts its own steps
            context.count_step()
        self._outer_steps.after_step()
        return result

    # torch.optim.Optimizer wraps a step without this mark, and its step hooks would run twice.
    step.hooked = True  # type: ignore[attr-defined]

    @outside_of_graphs
    def synchronize(self) -> None:
        """Bring the parameters of all ranks together now; all ranks must call this.

        Call it before the model is evaluated or saved, as the steps since the last exchange have
        changed only the parameters of the rank that took them.

        Raises:
            HorovodInternalError: an exchange failed.
        """
        self._outer_steps.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, and the outer parameters with all that belongs to them.

        Exchanges in flight are waited for, and are part of the state.
        """
        return super().state_dict() | {_STATE: self._outer_steps.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and state.

        The state of the plain class is enough. The next step then takes the parameters as they are
        for the outer ones, if they are equal on all ranks.

        Raises:
            UsageError: the state is one of other parameters, of the other kind of optimizer, or has
                exchanges in flight of another schedule.
        """
        self._outer_steps.load_state_dict(state_dict.get(_STATE))
        super().load_state_dict({k: v for k, v in state_dict.items() if k != _STATE})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further parameters.

        Raises:
            UsageError: always; the fragments are divided already.
        """
        raise UsageError(
            "a LocalSGD or DiLoCo optimizer takes no further parameters; call add_param_group() "
            "of the plain optimizer, and wrap that afterward"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain optimizers, which load without Horovod; they say so."""
        kind = "LocalSGD" if self.outer_optimizer is None else "DiLoCo"
        warn_of_plain_copy(self.process_set, stacklevel=3, kind=kind)
        return object.__new__, (type(self._plain),), self.__getstate__()

    def broadcast_outer_state(self, root_rank: int, site: str) -> None:
        """Give the outer parameters, and what belongs to them, of one rank to all.

        Args:
            root_rank: the rank whose state counts.
            site: ``file:line`` of the caller.

        Raises:
            HorovodInternalError: the job failed.
        """
        group = group_of(global_process_set)
        is_root = group.ranks[group.rank] == root_rank
        state = self._outer_steps.state_dict() if is_root else None
        state = objects.broadcast_object(group, state, root_rank, "outer_steps", site)
        self._outer_steps.load_state_dict(state)

    def _inner_step(self, closure: Callable[[], Any] | None) -> Any:
        return super().step() if closure is None else super().step(closure)

    def _skips_for_scaler(self) -> bool:
        """Do what GradScaler leaves to this step: divide gradients, or skip it."""
        found = self.__dict__.get("found_inf")
        if found is None or getattr(self._inner, "_step_supports_amp_scaling", False):
            return False
        scale = self.__dict__.get("grad_scale")
        # The wrapped step would refuse them, and GradScaler deletes them.
        self.__dict__.update(found_inf=None, grad_scale=None)
        if bool(found):
            return True
        if scale is not None:
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        param.grad.div_(scale.to(param.grad.device))
        return False


def LocalSGD(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    every: int,
    compression: CompressorLike = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Let each rank step by its own gradients, and average the parameters every few steps.

    Ranks send ``1 / every`` of the bytes of ``DistributedOptimizer``; changes of parameters of half
    precision travel as float32 unless they are compressed. The state of the optimizer,
    such as its momentum, stays that of each rank. From Stich, "Local SGD Converges Fast and
    Communicates Little" (ICLR 2019, arXiv:1805.09767).

    The ranks must begin with equal parameters, and take the same number of steps. Call
    ``optimizer.synchronize()`` on all ranks before the model is evaluated or saved: the steps since
    the last average have changed only the parameters of their own rank.

    Args:
        optimizer: any torch optimizer. A ``DistributedOptimizer`` over the ranks of each host is
            possible, too: hosts then train alone.
        named_parameters: ``model.named_parameters()``, for messages; None names them by place.
        every: local steps from one average to the next.
        compression: how changes travel: Compression.none, fp16, bf16, or your own.
        process_set: the ranks that are averaged.

    Returns:
        An instance of the same class, which shares parameter groups and state with ``optimizer``;
        use it instead.

    Raises:
        UsageError: the arguments are wrong.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=8)
    """
    site = call_site()
    schedule = OuterSchedule(every)
    refuse_quantizing(compression, "the exchange of LocalSGD and DiLoCo")
    wrapped = _wrap(optimizer, named_parameters, (schedule, process_set, compression, site))
    return cast("OptimizerT", wrapped)


def DiLoCo(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    every: int,
    outer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | None = None,
    fragments: int = 1,
    delay: int = 0,
    mixing: float | None = None,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Let each rank step by its own gradients, and step shared parameters by the average change.

    From Douillard et al., "DiLoCo" (arXiv:2311.08105): the average change is the gradient of an
    outer optimizer. With ``fragments`` and ``delay``, parts of the model take turns, and travel
    while training continues, as in Streaming DiLoCo (Douillard et al., arXiv:2501.18512). For the
    rest see :func:`LocalSGD`.

    Args:
        optimizer: any torch optimizer; the papers use AdamW.
        named_parameters: ``model.named_parameters()``, for messages; None names them by place.
        every: local steps from one exchange to the next, of each fragment.
        outer: makes the outer optimizer from the shared parameters. None is that of the paper, SGD
            with a learning rate of 0.7 and a Nesterov momentum of 0.9.
        fragments: into how many parts of about equal bytes the parameters are divided.
        delay: local steps that are taken while an exchange runs.
        mixing: the share of the local parameters that a delayed exchange leaves, at least 0 and
            below 1. None is 0.5 with a delay, as in the paper, and else 0.
        process_set: the ranks that take part.

    Returns:
        An instance of the same class, which shares parameter groups and state with ``optimizer``;
        use it instead. Its ``outer_optimizer`` is the outer one.

    Raises:
        UsageError: the arguments are wrong.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> optimizer = hvd.DiLoCo(torch.optim.AdamW(model.parameters()), every=32)
    """
    site = call_site()
    schedule = OuterSchedule(every, fragments, delay)
    if mixing is None:
        mixing = 0.5 if delay else 0.0
    if not 0.0 <= mixing < 1.0 or (mixing and not delay):
        raise UsageError(
            f"mixing={mixing} with delay={delay}: mixing must be at least 0 and below 1, and needs "
            "a delay"
        )
    settings = schedule, process_set, Compression.none, site
    wrapped = _wrap(optimizer, named_parameters, settings)
    steps = wrapped._outer_steps
    steps.mixing = mixing
    steps.optimizer = (outer or _outer_of_the_paper)(steps.outer)
    return cast("OptimizerT", wrapped)


def _outer_of_the_paper(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def _wrap(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    settings: tuple[OuterSchedule, ProcessSet, CompressorLike, str],
) -> LocalStepsOptimizer:
    schedule, process_set, compression, site = settings
    if isinstance(optimizer, LocalStepsOptimizer):
        raise UsageError("the optimizer is a LocalSGD or DiLoCo optimizer already")
    if getattr(optimizer, "shard_state", False):
        raise UsageError(
            "LocalSGD and DiLoCo keep the state of the whole optimizer on each rank, but it has "
            "shard_state=True; leave that out"
        )
    names = name_parameters(optimizer.param_groups, named_parameters)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    group_of(process_set)  # fails here before hvd.init(), and not at the first step
    steps = OuterSteps(
        {param: names[param] for param in params}, schedule, process_set, compression, site
    )
    wrapped = wrap(optimizer, LocalStepsOptimizer)
    wrapped._inner = optimizer
    wrapped._plain = getattr(optimizer, "_wrapped", optimizer)  # of a DistributedOptimizer
    wrapped._outer_steps = steps
    wrapped.process_set = process_set
    weakref.finalize(wrapped, _warn_of_steps_alone, steps, site)
    return wrapped


def _warn_of_steps_alone(steps: OuterSteps, site: str) -> None:
    """Say at the end that ranks have different parameters, if they do."""
    if steps.num_alone and steps.num_ranks > 1:
        _logger.warning(
            "the last %d steps of the optimizer made at %s were not averaged: the ranks have "
            "different parameters. Call optimizer.synchronize() on all ranks before the model is "
            "evaluated or saved",
            steps.num_alone,
            site,
        )
