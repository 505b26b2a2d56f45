"""Gradients of Keras on PyTorch on their way, from the hooks of a backward pass or from apply."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod._rank.reduction import Reduction
from horovod._train.compression import compressed, quantizing
from horovod._train.reduce_op import Average
from horovod.torch.calls import AllreduceCall
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._keras.settings import ReductionSettings
    from horovod._native import Buffer, Handle
    from horovod._rank.group import Group
    from horovod._train.compression import CompressorLike

    Residuals = tuple[list[Buffer], list[torch.Tensor]]


@dataclass
class Flight:
    """One operation with the gradients that it reduces.

    Attributes:
        part: the places of the gradients.
        sent: the gradients; while they are here, nothing else gets their memory.
        versions: how often each had been changed when it left.
        outputs: what the operation writes, as it travels.
        contexts: what the compression needs to undo itself.
        compression: of the gradients.
        handle: of the operation.
    """

    part: tuple[int, ...]
    sent: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    outputs: tuple[torch.Tensor, ...]
    contexts: list[Any]
    compression: CompressorLike
    handle: Handle

    def is_of(self, gradients: Sequence[Any]) -> bool:
        """Whether these are the gradients of some that a program applies, and are unchanged."""
        return all(
            _is_same(gradients[place], sent) and sent._version == version
            for place, sent, version in zip(self.part, self.sent, self.versions, strict=True)
        )

    def results(self) -> list[torch.Tensor]:
        """Wait, and return the gradients of all ranks, which the next launch overwrites.

        Raises:
            HorovodInternalError: the operation failed.
        """
        wait(self.handle, self.outputs[0])
        return [
            self.compression.decompress(output, context)
            for output, context in zip(self.outputs, self.contexts, strict=True)
        ]


def launch(
    group: Group,
    part: tuple[int, ...],
    gradients: list[torch.Tensor],
    settings: ReductionSettings,
    name: str,
    outputs: tuple[torch.Tensor, ...] | None,
    weight: float | None = None,
    errors_of: Callable[[Sequence[torch.Tensor]], Residuals] | None = None,
) -> Flight:
    """Starts the reduction of some gradients.

    Args:
        group: the ranks.
        part: the places of the gradients.
        gradients: dense ones, on one device.
        settings: how they are reduced.
        name: what the ranks agree on.
        outputs: of an earlier reduction of the same gradients, whose memory may be used again.
        weight: of this rank, on average 1; None if all ranks count alike.
        errors_of: finds what earlier reductions have rounded off; None if they round nothing.
    """
    averages = settings.op == Average
    with torch.no_grad():
        own = gradients if weight is None or averages else [_weighed(g, weight) for g in gradients]
        pairs = [compressed(settings.compression, gradient.detach()) for gradient in own]
        wires = tuple(wire.contiguous() for wire, _ in pairs)
    factor = settings.predivide_factor
    plain = Reduction(settings.op, 1.0 / factor, factor, weight if averages else None)
    residuals, kept = ([], []) if errors_of is None else errors_of(wires)
    reduction = quantizing(plain, settings.compression, residuals)
    call = AllreduceCall(
        group, name, "allreduce", settings.call_site, reduction, residuals=tuple(kept)
    )
    if outputs is None or not all(map(_is_alike, outputs, wires)):
        outputs = call.outputs(wires)
    versions = tuple(gradient._version for gradient in gradients)
    handle = call.submit(wires, outputs)
    contexts = [context for _, context in pairs]
    return Flight(part, tuple(gradients), versions, outputs, contexts, settings.compression, handle)


class Overlap:
    """Lets gradients leave in the backward pass, by hooks on the parameters.

    Args:
        group: the ranks.
        params: the parameters, by the places of their gradients.
        parts: the places of the gradients that leave together.
        leave: launches some gradients, or returns None.

    Attributes:
        group, parts: see above.
    """

    def __init__(
        self,
        group: Group,
        params: list[torch.Tensor],
        parts: tuple[tuple[int, ...], ...],
        leave: Callable[[tuple[int, ...], list[Any]], Flight | None],
    ) -> None:
        self.group = group
        self.parts = parts
        self._params = [weakref.ref(param) for param in params]
        self._leave = leave
        self._part_of = {place: part for part in parts for place in part}
        self._lock = threading.Lock()
        self._arrived: set[int] = set()
        self._flights: dict[tuple[int, ...], Flight] = {}
        this = weakref.ref(self)
        hooks = [
            param.register_post_accumulate_grad_hook(_hook_of(this, place))  # type: ignore[no-untyped-call]
            for place, param in enumerate(params)
        ]
        self._remove_hooks = weakref.finalize(self, _remove, hooks)
        self._remove_hooks.atexit = False

    def is_for(self, group: Group, params: Sequence[torch.Tensor]) -> bool:
        """Whether it was made for these ranks and parameters."""
        same = len(params) == len(self._params)
        return (
            same
            and group is self.group
            and all(known() is param for known, param in zip(self._params, params, strict=True))
        )

    def take(self) -> dict[tuple[int, ...], Flight]:
        """Return what is on its way, by its places, and begin a new step."""
        with self._lock:
            flights, self._flights = self._flights, {}
            self._arrived.clear()
        return flights

    def arrived(self, place: int) -> None:
        """A backward pass has added to a gradient; launches it if those beside it are there."""
        with self._lock:
            part = self._part_of[place]
            # What comes again has not been applied in between, which `apply` notices.
            self._arrived.add(place)
            if part in self._flights or not self._arrived.issuperset(part):
                return
            params = [known() for known in self._params]
            gradients = [None if param is None else param.grad for param in params]
            flight = self._leave(part, gradients)
            if flight is not None:
                self._flights[part] = flight

    def close(self) -> None:
        """Removes the hooks."""
        self._remove_hooks()


def _hook_of(reference: weakref.ref[Overlap], place: int) -> Callable[[torch.Tensor], None]:
    @outside_of_graphs  # autograd calls it while a compiled step runs
    def hook(_: torch.Tensor) -> None:
        overlap = reference()
        if overlap is not None:
            overlap.arrived(place)

    return hook


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _weighed(gradient: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the product; 0 where the weight is 0, even if the gradient is NaN."""
    return gradient * weight if weight else torch.zeros_like(gradient)


def _is_same(given: Any, sent: torch.Tensor) -> bool:
    """Whether a gradient is one that was sent, perhaps as another object."""
    return given is sent or (
        isinstance(given, torch.Tensor)
        and given.layout is torch.strided
        and given.data_ptr() == sent.data_ptr()
        and (given.dtype, given.shape, given.stride()) == (sent.dtype, sent.shape, sent.stride())
    )


def _is_alike(output: torch.Tensor, wire: torch.Tensor) -> bool:
    return (output.dtype, output.shape, output.device) == (wire.dtype, wire.shape, wire.device)
