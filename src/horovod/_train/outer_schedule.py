"""When parameters that each rank trains alone are brought together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class OuterSchedule:
    """Which fragments of the parameters are exchanged after which local step.

    The fragments take turns at equal distances, as in Streaming DiLoCo (arXiv:2501.18512).

    Attributes:
        every: local steps between two exchanges of a fragment.
        fragments: into how many parts the parameters are divided.
        delay: local steps that are taken while an exchange runs.

    Raises:
        UsageError: a number is out of its range.
    """

    every: int
    fragments: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every={self.every} must be at least 1 local step")
        if not 1 <= self.fragments <= self.every:
            raise UsageError(
                f"fragments={self.fragments} must be at least 1 and at most every={self.every}: "
                "one fragment at most is exchanged after each step"
            )
        if not 0 <= self.delay < self.every:
            raise UsageError(
                f"delay={self.delay} must be at least 0 and below every={self.every}: an exchange "
                "ends before the next one of the same fragment"
            )

    def first_start(self, fragment: int) -> int:
        """Return the local step, counted from 1, after which a fragment is exchanged first."""
        return (fragment + 1) * self.every // self.fragments

    def starting_after(self, step: int) -> int | None:
        """Return the fragment whose exchange starts after a local step, counted from 1."""
        for fragment in range(self.fragments):
            if (step - self.first_start(fragment)) % self.every == 0:
                return fragment
        return None

    def ending_after(self, step: int) -> int | None:
        """Return the fragment whose exchange ends after a local step, counted from 1."""
        return self.starting_after(step - self.delay) if step > self.delay else None


def refuse_delay(delay: int, framework: str) -> None:
    """Refuse exchanges that run while training continues.

    Raises:
        UsageError: ``delay`` is not 0.
    """
    if delay:
        raise UsageError(
            f"delay={delay}: exchanges that run during later steps are for PyTorch only; with "
            f"{framework} a compiled step ends with its exchange, so leave delay out"
        )


def divide_into_fragments(sizes: Sequence[int], fragments: int) -> list[list[int]]:
    """Divide parameters into consecutive parts of about the same size.

    Args:
        sizes: bytes of the parameters.
        fragments: how many parts, at least 1.

    Returns:
        For each part the indices of its parameters, at least one.

    Raises:
        UsageError: there are fewer parameters than parts.
    """
    if len(sizes) < fragments:
        raise UsageError(f"fragments={fragments}, but the optimizer trains {len(sizes)} parameters")
    parts: list[list[int]] = [[] for _ in range(fragments)]
    total, reached, part = sum(sizes), 0, 0
    for index, size in enumerate(sizes):
        must_move = len(sizes) - index == fragments - part - 1
        is_full = reached + size / 2 > total * (part + 1) / fragments
        if parts[part] and part + 1 < fragments and (must_move or is_full):
            part += 1
        parts[part].append(index)
        reached += size
    return parts
