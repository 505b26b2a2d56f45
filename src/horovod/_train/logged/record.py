"""What one call of ``hvd.log`` sends to the other ranks, and what the sum over ranks means. Pure.

A record travels as the sum of one vector of float64 over the ranks: five numbers of the header,
then each value times the weight of its rank. A rank that has joined adds zeros to all of them, so
that its weight is 0. Only rank 0, which writes, fills in the header behind the weight.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUM_HEADER = 5
_RESERVED = ("step", "weight")
# What all destinations accept, MLflow being the strictest.
_NAME = re.compile(r"[\w\-. /:]{1,250}")
_MOST_STEPS = 2**53


@dataclass(frozen=True)
class Run:
    """What the destinations call this job, the same in all its generations.

    Attributes:
        started_at: in whole seconds since 1970.
        token: a random number below 2**40, because two jobs may start in the same second.
    """

    started_at: int
    token: int

    @property
    def name(self) -> str:
        """A name for folders and runs, which sorts by time and belongs to this job alone."""
        begun = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.started_at))
        return f"{begun}-{self.token:010x}"


@dataclass(frozen=True)
class Resolved:
    """The meaning of the sum of a record over the ranks.

    Attributes:
        averages: of each value, in the order in which they were sent; empty if no rank has a
            weight above 0.
        step: as rank 0 counts it; None if rank 0 had joined.
        run: of rank 0; None if it had joined.
    """

    averages: tuple[float, ...]
    step: int | None
    run: Run | None


def collect_values(values: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a call by name, sorted by it.

    Args:
        values: the positional argument of the call; None for none.
        named: its keyword arguments.

    Raises:
        UsageError: there are none, a name is given twice, or is not one that all destinations
            accept.
    """
    positional = dict(values or {})
    if twice := sorted(positional.keys() & named.keys()):
        raise UsageError(f"hvd.log: {', '.join(twice)} is given twice, in the mapping and by name")
    together = {**positional, **named}
    if not together:
        raise UsageError("hvd.log needs at least one value, such as hvd.log(loss=loss)")
    for name in together:
        if problem := _problem_of_name(name):
            raise UsageError(f"hvd.log: the name {name!r} {problem}")
    return dict(sorted(together.items()))


def _problem_of_name(name: object) -> str:
    if not isinstance(name, str):
        return "is no text"
    if name in _RESERVED:
        return "is the name of an argument; choose another one"
    if not _NAME.fullmatch(name):
        return "may have letters, digits, spaces and _ - . / : only, at most 250 of them"
    if posixpath.normpath(name) != name or name.startswith(("/", ".")):
        return "is not a relative path of names, such as train/loss"
    return ""


def check_step(step: object) -> int | None:
    """Return the step that a caller gave, as an integer.

    Raises:
        UsageError: it is neither None nor an integer from 0 on.
    """
    if step is None:
        return None
    try:
        number = step.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number < _MOST_STEPS:
        raise UsageError(f"hvd.log: step={step!r} must be an integer from 0 on")
    return int(number)


def digest_of(names: Sequence[str], step: int | None, *, is_weighted: bool) -> int:
    """Return a number from 1 to 2**31 - 1 for what all ranks must say alike in one call.

    Args:
        names: of the values, sorted.
        step: as the caller gave it.
        is_weighted: whether the caller gave a weight.
    """
    text = json.dumps([list(names), step, is_weighted]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") % (2**31 - 1) + 1


def encode(
    values: Sequence[float], weight: float | None, step: int, run: Run | None
) -> list[float]:
    """Return this rank's part of the sum.

    Args:
        values: of this rank; those of weight 0 do not count, also if they are infinite or NaN.
        weight: None counts as 1.
        step: as this rank counts it.
        run: on rank 0; None on the others.
    """
    factor = 1.0 if weight is None else weight
    writer = [0.0] * 4 if run is None else [1.0, float(step), run.started_at, run.token]
    return [factor, *writer, *(factor * value if factor else 0.0 for value in values)]


def decode(total: Sequence[float]) -> Resolved:
    """Return what the sum of :func:`encode` over the ranks means."""
    weight, writers, step, started_at, token = total[:_NUM_HEADER]
    averages = tuple(value / weight for value in total[_NUM_HEADER:]) if weight else ()
    if not writers:
        return Resolved(averages, None, None)
    return Resolved(averages, int(step), Run(int(started_at), int(token)))
