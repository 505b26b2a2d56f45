"""Open files in folders that others may write, without following links that they put there.

Who can write a folder can put a symbolic link where a file will be: what is written through it
changes another file, with the rights of this process. So what Horovod writes is opened here. And
who can write a file decides what a process does that acts on it: such files are opened here, too.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    StrPath = str | os.PathLike[str]

# Rights that other users must not have: to write, or any at all.
WRITES = 0o022
ANY_ACCESS = 0o077

PART = ".part"
_STALE_S = 3600.0

_num_parts = itertools.count()


def create(path: StrPath, mode: int = 0o666) -> int:
    """Create a file for writing.

    Args:
        path: which nothing has yet, not even a link to nothing.
        mode: of the file, less the umask.

    Returns:
        Its descriptor.

    Raises:
        FileExistsError: something has this name.
        OSError: it cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def create_anew(path: StrPath, mode: int = 0o666) -> int:
    """Create a file for writing in the place of a file or link of this name.

    Returns:
        Its descriptor.

    Raises:
        OSError: it cannot be created, or a folder, a device or the like has its name.
    """
    _check_replaceable(path)
    with suppress(FileNotFoundError):
        os.unlink(path)
    return create(path, mode)


def open_to_append(path: StrPath, mode: int = 0o666) -> int:
    """Open a file for writing at its end; create it if there is none.

    Returns:
        Its descriptor.

    Raises:
        OSError: it cannot be opened, or is a link, a device or the like.
    """
    return _open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, mode)


def refuse_link_of_others(path: StrPath) -> None:
    """Refuse a link that another user has put where what is not opened here will write.

    Links of this user and of root are followed: they are as good as the path that the user gave.

    Raises:
        UsageError: it is such a link.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise UsageError(
                f"{os.fspath(path)} is a symbolic link of user {status.st_uid}, which is not "
                "followed: remove it, or name another file"
            )


def open_trusted(path: StrPath, denied: int = WRITES, *, follows: bool = False) -> int:
    """Open a file for reading whose contents decide what this process does.

    Args:
        path: of the file.
        denied: the rights that nobody but its owner may have, :data:`WRITES` or
            :data:`ANY_ACCESS`.
        follows: whether the file may be behind a link. What counts is the file in either case.

    Returns:
        Its descriptor.

    Raises:
        PermissionError: it belongs to another user, or other users have such a right.
        OSError: it cannot be opened, or is a link, a device or the like.
    """
    descriptor = _open_regular(path, os.O_RDONLY | (0 if follows else os.O_NOFOLLOW))
    try:
        if reason := distrust(os.fstat(descriptor), denied):
            raise PermissionError(errno.EPERM, reason, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def distrust(status: os.stat_result, denied: int = WRITES) -> str:
    """Return why a file or folder is not trusted, with what to do; "" if it is. Pure but for euid.

    Args:
        status: of the file.
        denied: see :func:`open_trusted`.
    """
    if status.st_uid != (user := os.geteuid()):
        return f"it belongs to user {status.st_uid}, not to user {user} who runs this process"
    mode = stat.S_IMODE(status.st_mode)
    if not mode & denied:
        return ""
    may = "change it" if mode & WRITES else "read it"
    return f"other users may {may} (mode {mode:04o}): chmod it to {mode & ~denied:04o}"


@contextmanager
def writing_whole(
    path: StrPath, mode: int = 0o666, *, replaces: bool = True, syncs: bool = False
) -> Iterator[BinaryIO]:
    """Write a file that appears under its name when the block ends, with all that is in it.

    If the block raises, nothing remains of it, and a file of that name stays as it was. Parts of
    processes that were killed are removed after an hour.

    Args:
        path: of the file; a link of this name is replaced, and what it points to stays.
        mode: of the file, less the umask.
        replaces: whether the file takes the place of one of its name, or is an error then.
        syncs: whether to wait until the contents are on the disk.

    Yields:
        A stream for the contents.

    Raises:
        FileExistsError: something has its name, and it replaces nothing.
        OSError: it cannot be written, or a folder, a device or the like has its name.
    """
    path = os.path.abspath(path)
    _check_replaceable(path)
    _remove_stale_parts(path)
    part = f"{path}{part_of_process()}{next(_num_parts)}{PART}"
    with os.fdopen(create_anew(part, mode), "wb") as stream:
        try:
            yield stream
            stream.flush()
            if syncs:
                os.fsync(stream.fileno())
            if replaces:
                os.replace(part, path)
            else:
                os.link(part, path)
                os.unlink(part)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise


def part_of_process() -> str:
    """Return what the names of this process's parts have between the name of the file and a number.

    After it comes a number, and then :data:`PART`.
    """
    return f".{socket.gethostname()}-{os.getpid()}-"


def _open_regular(path: StrPath, flags: int, mode: int = 0o666) -> int:
    # Without O_NONBLOCK the open of a FIFO would wait for its other end.
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a symbolic link, which is not followed"
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _check_replaceable(path: StrPath) -> None:
    """Refuse to remove what is neither a file nor a link, such as a FIFO or /dev/null."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise _not_regular(path)
    if stat.S_ISLNK(mode) and os.path.exists(path) and not os.path.isfile(path):
        raise _not_regular(path)  # as /dev/stdout


def _not_regular(path: StrPath) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _remove_stale_parts(path: str) -> None:
    folder, name = os.path.split(path)
    is_part = re.compile(rf"{re.escape(name)}\..+-\d+-\d+{re.escape(PART)}").fullmatch
    before = time.time() - _STALE_S
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if is_part(entry.name) and entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.path)
