"""The program of a rank's process: read the call, do it, leave the outcome in a file.

The folder belongs to the user who runs the test, who alone can read and write it.
"""

from __future__ import annotations

import faulthandler
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import cloudpickle

from horovod._settings.config import Config

CALL_FILE = "call"


class Outcome(NamedTuple):
    """The outcome of a call.

    Attributes:
        value: the result or the exception, pickled.
        traceback: of the exception, as text; empty if there is none.
        at_s: when, on the monotonic clock, which all processes of a machine share.
    """

    value: bytes
    traceback: str
    at_s: float


def outcome_file(rank: int) -> str:
    """Return the file of the outcome of a rank."""
    return f"outcome-{rank}"


def stacks_file(rank: int) -> str:
    """Return the file in which a rank leaves its stacks if its time is over."""
    return f"stacks-{rank}"


def main() -> None:
    """Does the call in the folder of the argument; an exception goes its way, as in a script."""
    folder = Path(sys.argv[1])
    rank = Config.from_env().rank
    # The folder is the test's own, and only its user can write into it.
    path, timeout_s, call = pickle.loads((folder / CALL_FILE).read_bytes())
    stacks = (folder / stacks_file(rank)).open("w")  # stays open to the end
    # Also if whoever started this has been killed.
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=stacks)
    sys.path += [entry for entry in path if entry not in sys.path]
    try:
        function, args = cloudpickle.loads(call)
        outcome = Outcome(cloudpickle.dumps(function(*args)), "", time.monotonic())
    except BaseException as error:
        at_s, text = time.monotonic(), traceback.format_exc()
        _leave(folder / outcome_file(rank), Outcome(_pickled(error), text, at_s))
        raise
    _leave(folder / outcome_file(rank), outcome)


def _pickled(error: BaseException) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(error)
        return pickled
    except Exception as problem:  # whatever its class may raise
        return pickle.dumps(
            RuntimeError(f"{type(error).__name__}: {error} (not picklable: {problem})")
        )


def _leave(file: Path, outcome: Outcome) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(pickle.dumps(tuple(outcome)))  # by its class, it would be __main__'s
    part.rename(file)


if __name__ == "__main__":
    main()
