"""The outcomes of the ranks of a test, and their report to the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from horovod.errors import HorovodInternalError, RankFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Failure:
    """A rank that failed.

    Attributes:
        rank: of the job.
        error: what it raised.
        at_s: when, on a clock that all ranks share.
        traceback: of the error, as text, if it comes from another process.
    """

    rank: int
    error: BaseException
    at_s: float
    traceback: str = ""

    @property
    def text(self) -> str:
        """The failure in one line."""
        first, *more = str(self.error).splitlines() or [""]
        return f"rank {self.rank}: {type(self.error).__name__}: {first}{' …' if more else ''}"


def raise_first(failures: Sequence[Failure], stopped: Sequence[str] = ()) -> NoReturn:
    """Raises what the rank that failed first has raised; notes name it, and the other failures.

    A rank that fails takes the others along, whose engines say so with HorovodInternalError. So
    another error comes before these, whenever it came.

    Args:
        failures: at least one.
        stopped: names of ranks that had to be stopped after these failures.
    """
    first, *others = sorted(
        failures, key=lambda each: (isinstance(each.error, HorovodInternalError), each.at_s)
    )
    lines = [f"Raised on rank {first.rank} of horovod.testing.run_ranks"]
    if first.traceback:
        lines += ["", first.traceback.rstrip(), ""]
    if others:
        lines += ["The other ranks that failed:", *(f"  {other.text}" for other in others)]
    if stopped:
        lines.append(f"Did not end after that, and had to be stopped: {', '.join(stopped)}")
    note = "\n".join(lines)
    error = first.error
    if hasattr(error, "add_note"):
        error.add_note(note)
        raise error
    # Python 3.10 has no notes, but tells causes.
    cause = RankFailedError(note, rank=first.rank, traceback=first.traceback)
    raise error from (error.__cause__ or cause)
