"""Let one process at a time run an experiment, for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.experiment import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK = "experiment.lock"
# Of file systems that know no locks, as Lustre may be mounted.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def owning(folder: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Let this process alone run an experiment, inside of the block.

    The kernel holds the lock as long as this process, or a fork of it, has the file open. Ranks
    and agents do not inherit it.

    Args:
        folder: of the experiment.
        say: takes a line for the user.

    Raises:
        UsageError: another process runs it, or there is no such experiment.
    """
    path = folder / LOCK
    try:
        with suppress(FileExistsError):
            open(path, "x").close()
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        record.read(folder)  # says what there is
        raise
    except OSError as error:
        raise record.unwritable(path, error) from None
    try:
        _lock(descriptor, folder, say)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, say: Callable[[str], object]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"experiment {folder.name} is still running, or another process has just resumed it: "
            f"'horovodrun experiment kill {folder.name}' ends it"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise record.unwritable(folder / LOCK, error) from None
        say(f"{folder} cannot be locked ({error.strerror}): make sure that nobody else resumes it")
