"""Files that decide what this process does: nobody else may have written them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

# Rights that other users must not have: to write, or any at all.
WRITES = 0o022
ANY_ACCESS = 0o077


def read_trusted(path: Path, denied: int = WRITES) -> str:
    """Return the text of a file that belongs to this user and is no link.

    Args:
        path: of the file.
        denied: the rights that nobody but its owner may have.

    Raises:
        FileNotFoundError: there is none.
        UsageError: it is a link, belongs to another user, or other users have such a right.
        OSError, UnicodeDecodeError: it cannot be read.
    """
    # Without O_NONBLOCK the open of a FIFO would wait for its writer.
    if path.is_symlink():
        raise UsageError(f"{path} is not used: it is a link")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not used: it is no regular file")
        _check(status, path, denied)
        return file.read()


def check_folder(path: Path) -> None:
    """Refuse a folder in which another user can put files.

    Raises:
        FileNotFoundError: there is none.
        UsageError: it is a link, belongs to another user, or others may write in it.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is not used: it is no folder, or a link to one")
    _check(status, path, WRITES)


def close_to_others(path: Path) -> None:
    """Take from others the right to write, which a umask such as 002 gives to a group."""
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) & ~WRITES)


def _check(status: os.stat_result, path: Path, denied: int) -> None:
    if status.st_uid != os.geteuid():
        raise UsageError(
            f"{path} is not used: it belongs to user {status.st_uid}, not to user {os.geteuid()} "
            "who runs this process"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & denied:
        raise UsageError(
            f"{path} is not used: it is open to other users (mode {mode:04o}); if you trust it, "
            f"chmod it to {mode & ~denied:04o}"
        )
