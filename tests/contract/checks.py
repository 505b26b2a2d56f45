"""The whole contract: every check, and the numbers of ranks that show what it states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import collectives
import exact_numbers
import gradients
import handles
import joining
import process_sets
import weights
import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

    Check = Callable[[Api, int, int], None]

SIZES: dict[Check, tuple[int, ...]] = {
    **dict.fromkeys(collectives.CHECKS, (1, 2, 3)),
    **dict.fromkeys(exact_numbers.CHECKS, (1, 2, 3)),
    **dict.fromkeys(gradients.CHECKS, (1, 2, 3)),
    **dict.fromkeys(handles.CHECKS, (1, 3)),
    **dict.fromkeys(wire.CHECKS, (1, 2, 3)),
    **dict.fromkeys(process_sets.CHECKS, (1, 2, 3, 5)),
    **dict.fromkeys(joining.CHECKS, (1, 2, 3, 4)),
    # Adasum makes a tree of the ranks, whatever their number.
    **dict.fromkeys(weights.CHECKS, (1, 2, 3, 4, 5)),
}

CHECKS: tuple[Check, ...] = tuple(SIZES)
