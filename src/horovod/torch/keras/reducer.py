"""Reduces the gradients of Keras on PyTorch, while the backward pass still computes others."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from horovod._keras.reducer import Keras3Reducer, key_of
from horovod._train.compression import always_quantizes, format_of
from horovod._train.gradients import group_positions, small_together
from horovod._train.objects import all_agree
from horovod._train.process_set import group_of
from horovod.errors import NotInitializedError, UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.error_feedback import ErrorFeedback
from horovod.torch.keras.flights import Flight, Overlap, launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from horovod._keras.settings import ReductionSettings
    from horovod._rank.group import Group
    from horovod._train.process_set import ProcessSet

_logger = logging.getLogger(__name__)


class TorchReducer(Keras3Reducer):
    """Reduces into memory of its own, so that gradients can be read and changed at any time.

    From the second step on, gradients leave when a backward pass has made them. A program may give
    ``apply`` others than these, for example clipped ones: then those are reduced, and from then on
    gradients leave in ``apply`` only. The ranks agree on this in each step. In a new job they begin
    as at first, because newcomers do not know what the others had agreed on.

    Args:
        settings: how.
        overlaps: whether gradients may leave before ``apply``.
    """

    def __init__(self, settings: ReductionSettings, *, overlaps: bool) -> None:
        super().__init__(settings)
        self._overlaps = overlaps
        self._overlap: Overlap | None = None
        # In whose job other gradients were given to `apply`.
        self._changed_in: weakref.ref[Group] | None = None
        self._outputs: dict[str, tuple[torch.Tensor, ...]] = {}
        self._feedback: ErrorFeedback | None = None
        self._fed_in: weakref.ref[Group] | None = None

    def stay_until_apply(self) -> None:
        """Let no gradient leave before ``apply``, where the program may not want it to leave."""
        self._overlaps = False
        if self._overlap is not None:
            self._stop_overlapping(self._overlap.group)

    def _is_sparse(self, gradient: Any) -> bool:
        return bool(gradient.is_sparse)

    def _as_dense(self, gradient: Any) -> Any:
        return gradient.to_dense()

    @outside_of_graphs
    def reduce(self, gradients: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        return super().reduce(gradients, variables)

    def _reduce_shared(
        self, group: Group, gradients: list[Any], variables: list[Any], names: list[str]
    ) -> list[Any]:
        self._feed_back_in(group)
        reduced = self._reduce_in_flights(group, gradients, variables, names)
        # No step should use what is not finite, and a loss scale skips it.
        if self._feedback is not None:
            on_cpu = (each for each in reduced if each.is_cpu)  # others are not quantized
            if all(bool(each.isfinite().all()) for each in on_cpu):
                self._feedback.keep()
        return reduced

    def _feed_back_in(self, group: Group) -> None:
        """Begin with errors of zero in a new job, which may have gone back to a commit."""
        if self._fed_in is None or self._fed_in() is not group:
            compression = self.settings.compression
            quantizes = always_quantizes(compression) or (
                format_of(compression) is not None and group.quantizes_by_itself
            )
            keeps = quantizes and not group.engine.all_local
            self._feedback = ErrorFeedback() if keeps else None
            self._fed_in = weakref.ref(group)

    def _reduce_in_flights(
        self, group: Group, gradients: list[Any], variables: list[Any], names: list[str]
    ) -> list[Any]:
        params = [variable.value for variable in variables]
        if self._overlap is not None and not self._overlap.is_for(group, params):
            # A new job, other variables, or other ones have gradients; the same on all ranks.
            self._stop_overlapping(group)
        if self._overlap is not None:
            reduced = self._reduce_rest(self._overlap, gradients, names)
            if reduced is not None:
                return reduced
        parts = self._parts(gradients, variables)
        reduced = _results(
            len(gradients), [self._launch(group, part, gradients, names) for part in parts]
        )
        has_changed = self._changed_in is not None and self._changed_in() is group
        if self._overlaps and self._overlap is None and not has_changed:
            self._overlap = Overlap(group, params, parts, self._leaving(group, names))
        return reduced

    def _reduce_rest(
        self, overlap: Overlap, gradients: list[Any], names: list[str]
    ) -> list[Any] | None:
        """Return what left in the backward pass, and reduce the rest.

        Returns:
            None if other gradients are to be applied on some rank; nothing is on its way then.
        """
        group, flights = overlap.group, overlap.take()
        is_as_sent = all(flight.is_of(gradients) for flight in flights.values())
        if all_agree(group, is_as_sent, f"{self._prefix(group)}.sent_in_backward"):
            for part in overlap.parts:
                if part not in flights:
                    flights[part] = self._launch(group, part, gradients, names)
            return _results(len(gradients), flights.values())
        for flight in flights.values():
            flight.results()  # other ranks wait for these as well
        self._changed_in = weakref.ref(group)
        self._stop_overlapping(group)
        _logger.info(
            "%s: gradients were changed after the backward pass, so they are reduced in apply() "
            "from now on, not while the backward pass runs",
            self.settings.name,
        )
        return None

    def _leaving(
        self, group: Group, names: list[str]
    ) -> Callable[[tuple[int, ...], list[Any]], Flight | None]:
        """Return the function that launches gradients in the backward pass.

        It returns None for those that have to wait for ``apply``, and does not keep this reducer.
        """
        reference = weakref.ref(self)

        def leave(part: tuple[int, ...], gradients: list[Any]) -> Flight | None:
            reducer = reference()
            if reducer is None or not _is_current(group, reducer.settings.process_set):
                return None
            if any(gradients[i] is None or gradients[i].is_sparse for i in part):
                return None
            return reducer._launch(group, part, gradients, names)

        return leave

    def _launch(
        self, group: Group, part: tuple[int, ...], gradients: Sequence[Any], names: list[str]
    ) -> Flight:
        chosen = [gradients[i] for i in part]
        first = names[part[0]]
        own = first if len(part) == 1 else f"{first}.and.{len(part) - 1}"
        flight = launch(
            group, part, chosen, self.settings, f"{self._prefix(group)}.{own}",
            self._outputs.get(own), self.weight, self._errors_of([names[i] for i in part]),
        )  # fmt: skip
        self._outputs[own] = flight.outputs
        return flight

    def _errors_of(self, names: list[str]) -> Any:
        feedback = self._feedback
        if feedback is None:
            return None

        def errors_of(wires: Sequence[torch.Tensor]) -> Any:
            if not wires[0].is_cpu:
                return [], []
            pairs = zip(names, wires, strict=True)
            return feedback.of([f"{name} {tuple(wire.shape)}" for name, wire in pairs], wires)

        return errors_of

    def _parts(self, gradients: list[Any], variables: list[Any]) -> tuple[tuple[int, ...], ...]:
        """Return the places of the gradients that leave together, the last ones first."""
        last_first = range(len(gradients))[::-1]
        sizes = [gradients[i].numel() * gradients[i].element_size() for i in last_first]
        default = tuple(tuple(last_first[i] for i in part) for part in small_together(sizes))
        return group_positions(self.settings.groups, list(map(key_of, variables)), default)

    def _stop_overlapping(self, group: Group) -> None:
        """Remove the hooks; what is on its way has arrived then."""
        overlap, self._overlap = self._overlap, None
        if overlap is not None:
            overlap.close()
            for flight in overlap.take().values() if overlap.group is group else ():
                flight.results()


def _is_current(group: Group, process_set: ProcessSet) -> bool:
    """Whether a process set has this group; a backward pass may follow the end of both."""
    try:
        return group_of(process_set) is group
    except (NotInitializedError, UsageError):
        return False


def _results(count: int, flights: Any) -> list[Any]:
    """Wait for all operations, and put their results in the places of the gradients."""
    reduced: list[Any] = [None] * count
    for flight in flights:
        for place, result in zip(flight.part, flight.results(), strict=True):
            reduced[place] = result
    return reduced
