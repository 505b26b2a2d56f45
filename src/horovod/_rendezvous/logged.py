"""Rank 0's report to the launcher of the values that ``hvd.log`` has averaged over the ranks."""

from __future__ import annotations

import json

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.bounds import number_in
from horovod.errors import StartError

MOST_VALUES = 1000
_MOST_CHARACTERS = 250

LOGGED_KEY = "logged"
"""Under it, rank 0 repeatedly reports the latest values, in place of those of a generation before.
"""


@dataclass(frozen=True)
class Logged:
    """The latest values.

    Attributes:
        step: of the latest record.
        values: the latest of each name, averaged over the ranks; at most MOST_VALUES.
    """

    step: int
    values: dict[str, float]

    def to_json(self) -> bytes:
        """Serialize for the store; NaN and infinity as Python reads them."""
        return json.dumps({"kind": "logged", "step": self.step, "values": self.values}).encode()

    @staticmethod
    def from_json(text: bytes) -> Logged:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else.
        """
        try:
            fields = json.loads(text)
            values = fields["values"]
            if fields["kind"] != "logged" or len(values) > MOST_VALUES:
                raise ValueError
            numbers = {str(name)[:_MOST_CHARACTERS]: float(values[name]) for name in values}
            return Logged(number_in(fields["step"], 0, 2**53), numbers)
        except (TypeError, ValueError, LookupError, RecursionError, OverflowError):
            raise StartError(f"malformed values of hvd.log: {text[:200]!r}") from None
