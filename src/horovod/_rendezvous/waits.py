"""A rank's report to the launcher of how long it has waited for other ranks so far."""

from __future__ import annotations

import json

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.bounds import number_in, seconds_in
from horovod.errors import StartError

# Exists if somebody reads what ranks tell.
WANTED_KEY = "waits/wanted"
# Exists if a launcher may ask for reports at any time.
POSSIBLE_KEY = "observe/possible"
# Exists while somebody watches; its value is the number of seconds between two reports.
OBSERVE_KEY = "observe/interval"
# What the ranks are to do once: a :class:`horovod._rendezvous.observed.Command`.
COMMAND_KEY = "observe/command"


def waits_key(generation: int, rank: int) -> str:
    """Return the key under which a rank of a generation repeatedly reports its waits."""
    return f"{waits_prefix(generation)}{rank}"


def waits_prefix(generation: int) -> str:
    """Return the prefix of the keys of all ranks of a generation."""
    return f"waits/{generation}/"


@dataclass(frozen=True)
class Waits:
    """The time that a rank has waited.

    Attributes:
        at_s: when it says so, on a clock of its host that only grows.
        waited_s: until then, since its engine began: seconds between what it submitted last and
            the end of that, in which it submitted nothing.
        submitted: how many operations it has submitted until then.
    """

    at_s: float
    waited_s: float
    submitted: int = 0

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps([self.at_s, self.waited_s, self.submitted]).encode()

    @staticmethod
    def from_json(text: bytes) -> Waits:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else.
        """
        try:
            at_s, waited_s, submitted = json.loads(text)
            most_s = 1e12
            at_s, waited_s = seconds_in(at_s, most_s), seconds_in(waited_s, most_s)
            return Waits(at_s, waited_s, number_in(submitted, 0, 2**63))
        except (TypeError, ValueError, RecursionError):
            raise StartError(f"malformed waits of a rank: {text[:200]!r}") from None
