"""Read files of an experiment that nobody else may write, as they decide what is run."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._base import files
from horovod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def read_trusted(path: Path, denied: int = files.WRITES) -> str:
    """Return the text of a file that belongs to this user and is no link.

    Args:
        path: of the file.
        denied: the rights that nobody but its owner may have.

    Raises:
        FileNotFoundError: there is none.
        UsageError: it is a link, belongs to another user, or other users have such a right.
        UnicodeDecodeError: it is no text.
    """
    try:
        with os.fdopen(files.open_trusted(path, denied), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path} is not used: {error.strerror}") from error


def check_folder(path: Path) -> None:
    """Refuse a folder in which another user can put files.

    Raises:
        FileNotFoundError: there is none.
        UsageError: it is a link, belongs to another user, or others may write in it.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is not used: it is not a folder, or is a link to one")
    if reason := files.distrust(status, files.WRITES):
        raise UsageError(f"{path} is not used: {reason}")


def close_to_others(path: Path) -> None:
    """Take from others the right to write, which a umask such as 002 gives to a group.

    Some file systems keep no modes. Who reads the file there is told, see :func:`read_trusted`.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & files.WRITES:
        with suppress(OSError):
            os.chmod(path, mode & ~files.WRITES)
