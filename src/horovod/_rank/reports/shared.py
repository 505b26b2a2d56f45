"""Errors whose report all ranks hold: one of the ranks that die of it prints the whole of it.

Who that is, is agreed in the job's store: a rank must not leave out what nobody else prints, and
none can know whether the others die of the error, catch it, or see another one.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING

from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod.errors import MismatchError, StalledError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._settings.config import Config

# Below the first line; so much each rank may print.
_MOST_LINES = 3
# The store may be gone: a launcher other than horovodrun has it in the process of rank 0.
_TIMEOUT_S = 1.0


def to_print(error: BaseException, config: Config) -> BaseException:
    """Return the exception for a rank to print: the given one, or a shorter one of its class.

    Args:
        error: as it was raised; it is left as it is.
        config: of this rank, in a job that runs.

    Returns:
        The error itself if it is short, or if no other rank has printed its report, or if nobody
        can tell.
    """
    if config.size == 1:
        return error
    name = f"rank {config.rank} ({config.hostname}:{os.getpid()})"
    return shortened(error, name, partial(_claim, config))


def shortened(
    error: BaseException, name: str, claim: Callable[[str, bytes], bytes | None]
) -> BaseException:
    """Do the same as :func:`to_print`.

    Args:
        error: as it was raised.
        name: of this rank, for the other ranks' output.
        claim: stores a value under a key, and returns the value that was there before.
    """
    # The first line names the operation of this rank; what follows is the same on all.
    first, _, report = str(error).partition("\n")
    num_lines = report.count("\n") + 1
    if type(error) not in (MismatchError, StalledError) or num_lines <= _MOST_LINES:
        return error
    digest = hashlib.sha256(report.encode(errors="replace")).hexdigest()[:32]
    teller = claim(f"reports/{digest}", name.encode())
    if teller is None or teller == name.encode():
        return error
    whose = teller.decode(errors="replace")
    short = type(error)(f"{first}\n  (the other {num_lines} lines are in the output of {whose})")
    short.__cause__, short.__context__ = error.__cause__, error.__context__
    short.__suppress_context__ = error.__suppress_context__
    return short.with_traceback(error.__traceback__)


def _claim(config: Config, key: str, value: bytes) -> bytes | None:
    try:
        with StoreClient(
            config.rendezvous_addr, config.rendezvous_port, secret_of(config), _TIMEOUT_S
        ) as store:
            return store.add(key, value)
    except StartError:
        return None
