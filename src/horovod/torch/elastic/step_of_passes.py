"""An optimizer that takes one step for several batches, which all ranks together have."""

from __future__ import annotations

import types
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch

from horovod._train.process_set import global_process_set
from horovod._train.reduce_op import Average
from horovod.errors import UsageError
from horovod.torch.gradient_reducer import GradientReducer
from horovod.torch.optimizer import ReducingOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim.lr_scheduler import LRScheduler

    from horovod._train.elastic.ledger import Share

__all__ = ["StepOfPasses"]


class StepOfPasses:
    """Lets an optimizer take a step by the mean over the samples of several passes and ranks.

    In each pass but the last, ``p.grad`` is this rank's gradient of that pass alone, until
    ``synchronize()``, ``step()`` or the end of the pass sets it aside; then parameters have none,
    so that ``zero_grad()`` and what clips gradients find nothing. In the last pass, what was set
    aside is added to a gradient before it is reduced, and all methods do what they always do.

    Args:
        optimizer: what :func:`horovod.torch.DistributedOptimizer` returns.
        asks: whether the program looks at what ends a step, and so uses a GradScaler only there.

    Raises:
        UsageError: the optimizer cannot.
    """

    def __init__(self, optimizer: ReducingOptimizer, asks: Callable[[], bool]) -> None:
        check_accumulates(optimizer)
        self._optimizer = optimizer
        self._reducer: Any = optimizer._reducer
        self._asks = asks
        self._share: Share | None = None
        self._is_set_aside = False
        # Whether the last step came to its end.
        self._is_over = True
        # The parts of the mean over this rank's samples from the passes of this step that ended.
        self._aside: dict[torch.Tensor, torch.Tensor] = {}
        for name in ("step", "synchronize"):
            method = types.MethodType(self._in_last_pass(getattr(optimizer, name)), optimizer)
            vars(optimizer)[name] = method
        vars(optimizer)["_before_unscaling"] = self._before_unscaling
        for name in ("reduce", "on_gradient", "before_gradient"):
            plain, own = getattr(self._reducer, name), getattr(self, f"_{name}")
            vars(self._reducer)[name] = partial(own, plain)

    def begin(self, share: Share | None) -> None:
        """Begin a pass.

        Args:
            share: this rank's samples in it; None where a batch is a step, as ever.
        """
        self._share = share
        self._is_set_aside = False
        if share is None or share.number == 0:
            self._aside.clear()  # of a step that was not finished
        if share is None:
            return
        if share.number == 0 and not self._is_over:
            for param in self._reducer.names:
                param.grad = None
        self._is_over = False
        if not self._optimizer.has_weight:
            ReducingOptimizer.set_weight(self._optimizer, self._weight)
        if share.passes > 1:
            self._reducer.reduced = self._reducer.holds_reduced = False
            for param in self._reducer.names:
                self._reducer._hook_pass(param)

    def end(self) -> None:
        """End a pass: sets aside what is in ``p.grad``, if it ends no step."""
        if self._ends_step:
            self._is_over = True
        else:
            self._set_aside()

    @property
    def _ends_step(self) -> bool:
        return self._share is None or self._share.ends_step

    def _weight(self) -> float:
        """How many samples this rank has in the step."""
        return 1.0 if self._share is None else float(self._share.of_step)

    def _part(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return what the gradient of a pass adds to the mean over this rank's samples."""
        assert self._share is not None
        if not self._share.samples:  # the gradient may be infinite
            return torch.zeros_like(gradient)
        return gradient * (self._share.samples / self._share.of_step)

    def _set_aside(self) -> None:
        if self._is_set_aside or self._share is None:
            return
        self._is_set_aside = True
        for param in self._reducer.names:
            gradient, param.grad = param.grad, None
            if gradient is not None:
                with torch.no_grad():
                    part = self._part(gradient.detach())
                    before = self._aside.get(param)
                    self._aside[param] = part if before is None else before + part

    def _complete(self, param: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of all passes for one of the last pass, which may not be alone."""
        part, aside = self._part(gradient), self._aside.pop(param, None)
        return part if aside is None else part + aside

    def _in_last_pass(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def in_last_pass(_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._share is not None and any(
                callable(each) for each in (*args, *kwargs.values())
            ):
                raise UsageError(
                    "step(closure) with global_batch: a closure cannot compute the earlier passes "
                    "of a step again; call backward() and then step()"
                )
            if self._ends_step:
                return method(*args, **kwargs)
            self._set_aside()
            return None

        return in_last_pass

    def _before_unscaling(self) -> None:
        if self._share is not None and not self._asks():
            raise UsageError(
                "a GradScaler with global_batch: a step may have several batches, whose gradients "
                "are unscaled together; write `if training.ends_step:` before scaler.unscale_(), "
                "scaler.step() and scaler.update()"
            )

    def _reduce(self, reduce: Callable[..., None], params: Iterable[torch.Tensor]) -> None:
        if not self._ends_step:
            self._set_aside()
            return
        for param, aside in self._aside.items():  # those without a gradient in the last pass
            param.grad = aside
        self._aside.clear()
        reduce(params)

    def _on_gradient(self, on_gradient: Callable[..., None], param: torch.Tensor) -> None:
        if self._ends_step:
            on_gradient(param)

    def _before_gradient(
        self, before_gradient: Callable[..., Any], param: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor | None:
        if self._share is None or self._share.passes == 1:
            weighed: torch.Tensor | None = before_gradient(param, gradient)
            return weighed
        return self._complete(param, gradient) if self._ends_step else None


def check_accumulates(optimizer: ReducingOptimizer) -> None:
    """Refuse an optimizer that cannot take a step for several passes.

    Raises:
        UsageError: it cannot, or takes a step for several batches itself.
    """
    if optimizer.op != Average:
        raise UsageError(
            "global_batch needs op=Average: a step is the mean over the samples of all ranks; "
            "leave op of DistributedOptimizer out"
        )
    if optimizer.backward_passes_per_step > 1:
        raise UsageError(
            f"backward_passes_per_step={optimizer.backward_passes_per_step} with global_batch, "
            "which says how many passes a step has: leave backward_passes_per_step out"
        )
    if optimizer.process_set.process_set_id != global_process_set.process_set_id:
        raise UsageError(
            "global_batch with a process set: a step is the mean over the samples of all ranks; "
            "leave process_set of DistributedOptimizer out"
        )
    if type(optimizer._reducer) is not GradientReducer:
        raise UsageError(
            "global_batch with shard_state=True: a share of the gradients does not wait for later "
            "passes; leave shard_state or global_batch out"
        )


def step_with_steps(scheduler: LRScheduler, ends_step: Callable[[], bool]) -> None:
    """Let a learning rate scheduler do nothing in passes that end no step.

    Args:
        scheduler: changes its class, as its attributes are its state.
        ends_step: whether the optimizer takes its step now.
    """
    kind: Any = type(scheduler)

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        if ends_step():
            kind.step(self, *args, **kwargs)

    members = {"step": wraps(kind.step)(step), "__module__": kind.__module__}
    scheduler.__class__ = type(kind.__name__, (kind,), members)
