"""Which workers of an elastic job are silent although others are not. Pure.

Each worker changes a value in the store every few seconds, on a thread of its own, whatever its
program does. One that does not is stopped (SIGSTOP, a frozen container, a debugger), or some native
code has kept Python's lock for all that time. Its connections live, so nobody else would notice,
but its peers wait for it. That a worker computes or loads for long is no silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod._job.records import beat_s_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class _Heard:
    value: bytes | None
    silent_s: float = 0.0
    told: bool = False


class Silence:
    """Signs of life from the members of a job.

    Only time in which others are heard counts: if all are silent at once, as when the job is
    suspended, nobody would be left to go on, and they need not all come back at the same moment.

    Args:
        timeout_s: how long a worker may be silent.

    Example:
        >>> silence = Silence(10.0)
        >>> [silence.look(float(now), {"a-0": b"%d" % now, "a-1": b"0"}) for now in range(0, 13, 2)]
        [{}, {}, {}, {}, {}, {'a-1': 10.0}, {}]
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._patience_s = 3 * beat_s_of(timeout_s)
        self._looked_s: float | None = None
        self._nobody_s = 0.0  # for how long no member was heard
        self._heard: dict[str, _Heard] = {}

    def look(self, now_s: float, values: Mapping[str, bytes | None]) -> dict[str, float]:
        """Takes in the values of all members, about as often as they change.

        Returns:
            Who is silent now and was not told before, and for how many seconds.
        """
        since_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if since_s > self._patience_s:  # this process itself was stopped, or the whole machine
            since_s = 0.0
        before, self._heard = self._heard, {}
        for name, value in values.items():
            known = before.get(name)
            is_old = known is not None and known.value == value
            self._heard[name] = known if known is not None and is_old else _Heard(value)
        anybody = any(before.get(name) is not each for name, each in self._heard.items())
        self._nobody_s = 0.0 if anybody else self._nobody_s + since_s
        return self._overdue(before, since_s) if self._nobody_s < self._patience_s else {}

    def _overdue(self, before: Mapping[str, _Heard], since_s: float) -> dict[str, float]:
        overdue = {}
        for name, each in self._heard.items():
            if before.get(name) is each:
                each.silent_s += since_s
            if each.silent_s >= self._timeout_s and not each.told:
                each.told = True
                overdue[name] = each.silent_s
        return overdue
