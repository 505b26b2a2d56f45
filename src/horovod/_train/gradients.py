"""When gradients leave: passes are counted per parameter, parameters leave in groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from horovod.errors import UsageError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def split_list(items: Sequence[T], num_parts: int) -> list[list[T]]:
    """Cuts a list into consecutive parts whose lengths differ by at most one, longer ones first.

    Args:
        items: what to cut; may be shorter than ``num_parts``, then some parts are empty.
        num_parts: at least 1.

    Example:
        >>> split_list([1, 2, 3, 4, 5], 3)
        [[1, 2], [3, 4], [5]]
    """
    length, num_longer = divmod(len(items), num_parts)
    parts = []
    start = 0
    for index in range(num_parts):
        end = start + length + (1 if index < num_longer else 0)
        parts.append(list(items[start:end]))
        start = end
    return parts


GROUP_BYTES = 4 << 20
"""Gradients that are reduced together without being asked for hold at most so many bytes."""


def group_positions(
    groups: int | Sequence[Sequence[Hashable]] | None,
    keys: Sequence[Hashable],
    default: tuple[tuple[int, ...], ...],
) -> tuple[tuple[int, ...], ...]:
    """Return the places of the gradients that are reduced together.

    Args:
        groups: how many groups of consecutive gradients, or the keys of those that go together.
        keys: of all gradients.
        default: the result if ``groups`` is None.
    """
    if groups is None:
        return default
    everything = range(len(keys))
    if isinstance(groups, int):
        parts = split_list(everything, groups)
    else:
        place_of = {key: i for i, key in enumerate(keys)}
        parts = [[place_of[key] for key in group if key in place_of] for group in groups]
        grouped = {i for part in parts for i in part}
        parts += [[i] for i in everything if i not in grouped]
    return tuple(tuple(part) for part in parts if part)


def small_together(sizes: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
    """Puts small gradients into one operation: each costs TensorFlow and the engine some time.

    Args:
        sizes: in bytes; None is not put together with others.

    Returns:
        The places of ``sizes``, each once, in groups of at most ``GROUP_BYTES``, but for those of
        one place. Groups are in the order of their first places.
    """
    groups: list[list[int]] = []
    open_group: list[int] = []
    room = 0
    for place, size in enumerate(sizes):
        if size is None or size > GROUP_BYTES:
            groups.append([place])
            continue
        if size > room or not open_group:
            open_group, room = [], GROUP_BYTES
            groups.append(open_group)
        open_group.append(place)
        room -= size
    return tuple(map(tuple, groups))


def check_passes(passes: int) -> int:
    """Returns ``backward_passes_per_step`` if it makes sense.

    Raises:
        UsageError: it is below 1.
    """
    if passes < 1:
        raise UsageError(f"backward_passes_per_step={passes} must be at least 1")
    return passes


class GradientSchedule(Generic[K]):
    """Counts backward passes and says which parameters are to be reduced now.

    A parameter is *due* after ``passes`` backward passes; a group leaves when all its members are
    due. Keys stand for parameters. Safe to use from several threads.

    Args:
        passes: backward passes of one optimizer step, at least 1.
    """

    def __init__(self, passes: int) -> None:
        self._passes = check_passes(passes)
        self._lock = threading.Lock()
        self._group_of: dict[K, int] = {}
        self._groups: list[tuple[K, ...]] = []
        self._passes_left: dict[K, int] = {}
        self._members_left: list[int] = []
        self._launched: set[int] = set()

    @property
    def passes(self) -> int:
        return self._passes

    def add_group(self, keys: Iterable[K]) -> None:
        """Adds parameters that leave together; call it between two steps only."""
        group = tuple(keys)
        with self._lock:
            for key in group:
                self._group_of[key] = len(self._groups)
                self._passes_left[key] = self._passes
            self._groups.append(group)
            self._members_left.append(len(group))

    def regroup(self, groups: Iterable[Iterable[K]]) -> None:
        """Replaces all groups; call it between two steps only."""
        with self._lock:
            self._group_of.clear()
            self._groups.clear()
            self._passes_left.clear()
            self._members_left.clear()
            self._launched.clear()
        for group in groups:
            self.add_group(group)

    @property
    def groups(self) -> tuple[tuple[K, ...], ...]:
        """Return the parameters that leave together, in the order in which they were added."""
        return tuple(self._groups)

    def __contains__(self, key: K) -> bool:
        return key in self._group_of

    def arrived(self, key: K) -> tuple[K, ...]:
        """Counts one backward pass of a parameter; returns the group to launch now, or nothing.

        Raises:
            AssertionError: the parameter had been launched already in this step.
        """
        with self._lock:
            left = self._passes_left[key] - 1
            group_index = self._group_of[key]
            if left < 0 or group_index in self._launched:
                raise AssertionError(
                    "gradients were computed more than backward_passes_per_step="
                    f"{self._passes} times before step() or synchronize(); if this is intended, "
                    "raise backward_passes_per_step to accumulate gradients locally, or call "
                    "zero_grad() to drop those of the last backward pass"
                )
            self._passes_left[key] = left
            if left:
                return ()
            self._members_left[group_index] -= 1
            if self._members_left[group_index]:
                return ()
            self._launched.add(group_index)
            return self._groups[group_index]

    def take_missing(self) -> list[tuple[K, ...]]:
        """Returns every group that was not launched in this step, and counts it as launched."""
        with self._lock:
            missing = [i for i in range(len(self._groups)) if i not in self._launched]
            self._launched.update(missing)
            return [self._groups[i] for i in missing]

    def reset(self, passes: int | None = None) -> None:
        """Begins a new step.

        Args:
            passes: the new number of backward passes per step; unchanged if None.
        """
        with self._lock:
            if passes is not None:
                self._passes = check_passes(passes)
            self._passes_left = dict.fromkeys(self._passes_left, self._passes)
            self._members_left = [len(group) for group in self._groups]
            self._launched.clear()


class BackwardPasses(Generic[K]):
    """Tells the backward passes of a step apart, by the gradients that arrive.

    Parameters may be left out of some passes, so that no parameter can count them alone.
    """

    def __init__(self) -> None:
        self._arrived: set[K] = set()
        self._latest_run = -1
        self._is_expected = True

    def expect(self) -> None:
        """Lets the next gradient begin a pass."""
        self._is_expected = True

    def begins(self, key: K, run: int, is_nested: Callable[[], bool]) -> bool:
        """Whether the gradient of a parameter is the first of its backward pass.

        Args:
            key: the parameter.
            run: the number of this run of the framework's backward function; later ones have
                greater numbers.
            is_nested: whether this run is part of another one, such as that of a checkpoint.
        """
        begins = self._is_expected or key in self._arrived
        if run > self._latest_run:
            begins = begins or not is_nested()
            self._latest_run = run
        if begins:
            self._arrived.clear()
            self._is_expected = False
        self._arrived.add(key)
        return begins
