"""The outer parameters of ranks that train alone for a while, and how they are brought together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import torch

from horovod._train import sync_check
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.optimizer_options import reduces
from horovod._train.outer_schedule import OuterSchedule, divide_into_fragments
from horovod._train.process_set import group_of
from horovod._train.waiting import wait_for_all
from horovod.errors import HorovodInternalError, ReplicasDivergedError, UsageError
from horovod.torch.calls import AllreduceCall
from horovod.torch.devices import by_device, hand_over
from horovod.torch.sync_check import SampledSyncCheck, array_of
from horovod.torch.tensors import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod._train.compression import CompressorLike
    from horovod._train.process_set import ProcessSet

Tensors = list[torch.Tensor]

_HALF = (torch.float16, torch.bfloat16)
_numbers = NameNumbers()


class OuterSteps:
    """Exchanges what local steps have changed, and applies the average to the outer parameters.

    Only changes are averaged, never parameters, so that a rank which has joined counts as one that
    has changed nothing. All ranks compute the outer parameters from the same numbers, so they have
    the same bits everywhere.

    Args:
        names: of all parameters; those that are not trained when this is made are left out, and
            must not be trained later.
        schedule: when to exchange what.
        process_set: the ranks that take part.
        compression: how changes travel.
        call_site: ``file:line`` of the caller.

    Attributes:
        outer: the outer parameters, float32 for parameters of half precision.
        optimizer: steps the outer parameters by the negative average change; None adds the change.
        mixing: the share of the local parameters that a delayed exchange leaves.
        num_steps: local steps taken so far.
        num_alone: of them, those since the parameters of all ranks were equal.
        num_ranks: that took part when the first step was taken.
    """

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        schedule: OuterSchedule,
        process_set: ProcessSet,
        compression: CompressorLike,
        call_site: str,
    ) -> None:
        self._local = [param for param in names if param.requires_grad]
        self._names = {param: names[param] for param in self._local}
        self._frozen = {param: name for param, name in names.items() if not param.requires_grad}
        self._schedule = schedule
        self._process_set = process_set
        self._compression = compression
        self._call_site = call_site
        sizes = [param.numel() * param.element_size() for param in self._local]
        self._fragments = divide_into_fragments(sizes, schedule.fragments)
        self._number = JobNumber(_numbers, list(self._names.values()))
        self._pending: dict[int, Exchange | Tensors] = {}
        self._has_begun = False
        self.outer = [_copy_of(param) for param in self._local]
        outer_names = {outer: names[p] for outer, p in zip(self.outer, self._local, strict=True)}
        self._sync_check = SampledSyncCheck.configured(process_set, outer_names)
        self.optimizer: torch.optim.Optimizer | None = None
        self.mixing = 0.0
        self.num_steps = 0
        self.num_alone = 0
        self.num_ranks = 1

    def begin(self) -> None:
        """Take the parameters as the outer ones, before the first local step.

        Raises:
            UsageError: a parameter is trained that was not when this was made.
            ReplicasDivergedError: the ranks have other parameters, so that changes cannot be added.
            HorovodInternalError: the job failed.
        """
        self._refuse_thawed()
        if self._has_begun:
            return
        group = group_of(self._process_set)
        if reduces(group):
            self.num_ranks = group.size
            arrays = [array_of(name, param) for param, name in self._names.items()]
            try:
                sync_check.check_in_sync(group, arrays, self._call_site)
            except ReplicasDivergedError as error:
                raise ReplicasDivergedError(
                    f"before the first local step, {error.message}",
                    error.tensors,
                    error.ranks,
                ) from None
        self._take(self._local)
        self._has_begun = True

    def after_step(self) -> None:
        """Count a local step, and end and start the exchanges that are due.

        Raises:
            HorovodInternalError: an exchange failed.
        """
        self.num_steps += 1
        self.num_alone += 1
        ending = self._schedule.ending_after(self.num_steps)
        if self._schedule.delay and ending is not None:
            self._finish(ending, self.mixing)
        starting = self._schedule.starting_after(self.num_steps)
        if starting is None:
            return
        self._start(starting)
        if not self._schedule.delay:
            self._finish(starting, 0.0)
            if self._schedule.fragments == 1:
                self.num_alone = 0

    def synchronize(self) -> None:
        """Bring all parameters together now, so that they are equal on all ranks.

        Raises:
            HorovodInternalError: an exchange failed.
        """
        self.begin()
        for fragment in list(self._pending):
            self._finish(fragment, self.mixing)
        if not self.num_alone:
            return
        for fragment in range(len(self._fragments)):
            self._start(fragment)
        for fragment in range(len(self._fragments)):
            self._finish(fragment, 0.0)
        self.num_alone = 0

    def state_dict(self) -> dict[str, Any]:
        """Return all of this state; exchanges in flight are waited for, and are part of it."""
        pending = {fragment: self._average(fragment) for fragment in self._pending}
        return {
            "has_begun": self._has_begun,
            "num_steps": self.num_steps,
            "num_alone": self.num_alone,
            "schedule": astuple(self._schedule),
            "parameters": [outer.clone() for outer in self.outer],
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "pending": {key: [t.clone() for t in average] for key, average in pending.items()},
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load a state; None, as of an optimizer without one, begins again at the next step.

        Raises:
            UsageError: the state does not fit; nothing is changed then.
        """
        if state is not None:
            self._check_fits(state)
        self._drop_pending()
        self._has_begun = state is not None and state["has_begun"]
        self.num_steps = state["num_steps"] if state else 0
        self.num_alone = state["num_alone"] if state else 0
        if state is None:
            return
        self._take(state["parameters"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self._pending = {
            fragment: [
                saved.to(self.outer[index])
                for index, saved in zip(self._fragments[fragment], average, strict=True)
            ]
            for fragment, average in state["pending"].items()
        }

    def _drop_pending(self) -> None:
        """Forget exchanges in flight, once they have ended: their names are free then."""
        for pending in self._pending.values():
            if isinstance(pending, Exchange):
                with suppress(HorovodInternalError):  # of a job that has failed
                    pending.wait()
        self._pending = {}

    def _check_fits(self, state: dict[str, Any]) -> None:
        shapes = [tuple(outer.shape) for outer in state["parameters"]]
        own = [tuple(outer.shape) for outer in self.outer]
        if shapes != own:
            raise UsageError(
                f"the state of local steps has outer parameters of the shapes {shapes}, but this "
                f"optimizer trains parameters of the shapes {own}"
            )
        if (state["optimizer"] is None) != (self.optimizer is None):
            kinds = ("LocalSGD", "DiLoCo") if self.optimizer else ("DiLoCo", "LocalSGD")
            raise UsageError(
                f"the state is of a {kinds[0]} optimizer, but this one is of {kinds[1]}; load the "
                'state without its key "horovod_outer_steps" to begin with equal parameters'
            )
        schedule = OuterSchedule(*state["schedule"])
        if state["pending"] and schedule != self._schedule:
            raise UsageError(
                f"the state has exchanges in flight of {schedule}, but this optimizer has "
                f"{self._schedule}; call synchronize() before the state is saved"
            )

    def _refuse_thawed(self) -> None:
        for param, name in self._frozen.items():
            if param.requires_grad:
                raise UsageError(
                    f"parameter {name} is trained now, but was not when the LocalSGD or DiLoCo "
                    "optimizer was made, so its changes would stay on this rank; set requires_grad "
                    "before the optimizer is made"
                )

    def _take(self, parameters: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for outer, param in zip(self.outer, parameters, strict=True):
                outer.copy_(param)

    def _start(self, fragment: int) -> None:
        group = group_of(self._process_set)
        members = self._fragments[fragment]
        with torch.no_grad():
            changes = [self._local[i].to(self.outer[i].dtype) - self.outer[i] for i in members]
        if not reduces(group):
            self._pending[fragment] = changes
            return
        name = f"local_steps.{self._number.within(group)}.{fragment}"
        waits_next = not self._schedule.delay
        self._pending[fragment] = Exchange(
            group, name, self._call_site, changes, self._compression, waits_next
        )

    def _average(self, fragment: int) -> Tensors:
        """Return the average changes of a fragment whose exchange has been started."""
        pending = self._pending[fragment]
        if isinstance(pending, Exchange):
            pending = self._pending[fragment] = pending.wait()
        return pending

    def _finish(self, fragment: int, mixing: float) -> None:
        if fragment not in self._pending:
            return  # its exchange would have started before this state was loaded
        average = self._average(fragment)
        del self._pending[fragment]
        members = self._fragments[fragment]
        with torch.no_grad():
            self._step_outer([self.outer[i] for i in members], average)
            for index in members:
                outer = self.outer[index].to(self._local[index].dtype)
                local = self._local[index]
                local.copy_(local.mul(mixing).add_(outer, alpha=1.0 - mixing) if mixing else outer)
        self._sync_check.after_step([{"params": self.outer}])

    def _step_outer(self, outer: Tensors, changes: Tensors) -> None:
        if self.optimizer is None:
            for param, change in zip(outer, changes, strict=True):
                param.add_(change)
            return
        for param, change in zip(outer, changes, strict=True):
            param.grad = change.neg_()
        self.optimizer.step()
        for param in outer:
            param.grad = None


class Exchange:
    """The average of changes, on its way.

    Args:
        group: the ranks that take part.
        name: what they agree on.
        call_site: ``file:line`` of the caller.
        changes: of this rank; their memory is used.
        compression: how they travel.
        waits_next: :meth:`wait` follows at once.
    """

    def __init__(
        self,
        group: Group,
        name: str,
        call_site: str,
        changes: Tensors,
        compression: CompressorLike,
        waits_next: bool,
    ) -> None:
        self._compression = compression
        compressed = [compression.compress(change) for change in changes]
        self._wires = [dense(wire) for wire, _ in compressed]
        self._contexts = [context for _, context in compressed]
        parts = by_device(self._wires)
        self._handles: list[Handle] = []
        for number, wires in enumerate(parts):
            own = name if len(parts) == 1 else f"{name}.{number}"
            call = AllreduceCall(group, own, "allreduce", call_site)
            self._handles.append(call.submit(wires, wires, waits_next and len(parts) == 1))
        self._firsts = [wires[0] for wires in parts]

    def wait(self) -> Tensors:
        """Wait for the average changes and return them.

        Raises:
            HorovodInternalError: the exchange failed.
        """
        wait_for_all(self._handles)
        for handle, first in zip(self._handles, self._firsts, strict=True):
            hand_over(handle, first)
        decompress: Callable[..., torch.Tensor] = self._compression.decompress
        return [decompress(*pair) for pair in zip(self._wires, self._contexts, strict=True)]


def _copy_of(param: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if param.dtype in _HALF else param.dtype
    return param.detach().to(dtype, copy=True)
