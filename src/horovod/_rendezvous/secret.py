"""The secret of one job: how it is made, and how it rests in a private file."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from horovod._base import files
from horovod.errors import StartError

if TYPE_CHECKING:
    from horovod._settings.config import Config

SECRET_BYTES = 32
_FILE_NAME = "secret"


def make_secret() -> bytes:
    """Makes the random secret of a new job: 32 bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def check_secret(secret: bytes) -> bytes:
    """Returns ``secret`` if it has the right size.

    Raises:
        StartError: it is shorter or longer than 32 bytes.
    """
    if len(secret) != SECRET_BYTES:
        raise StartError(f"the job's secret has {len(secret)} bytes, not {SECRET_BYTES}")
    return secret


def write_secret(directory: str | os.PathLike[str], secret: bytes) -> str:
    """Writes the secret to a new file of mode 0600.

    Args:
        directory: belongs to this user and is closed to everybody else (mode 0700).
        secret: 32 bytes.

    Returns:
        The path of the file, for ``HOROVOD_SECRET_FILE``.

    Raises:
        StartError: the directory is open to others, or the file exists or cannot be written.
    """
    check_secret(secret)
    path = os.path.join(os.fspath(directory), _FILE_NAME)
    try:
        if reason := files.distrust(os.stat(directory), files.ANY_ACCESS):
            raise StartError(f"the folder {os.fspath(directory)} may hold no secret: {reason}")
        with os.fdopen(files.create(path, 0o600), "wb") as file:
            file.write(secret)
    except OSError as error:
        raise StartError(f"cannot write the job's secret to {path}: {error.strerror}") from error
    return path


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """Reads the secret that :func:`write_secret` wrote.

    Args:
        path: of the file. A symbolic link is followed, as Kubernetes mounts its secrets so; what
            counts is the owner and the mode of the file behind it.

    Raises:
        StartError: the file is missing, readable by others, owned by another user, or not 32
            bytes long.
    """
    if not os.fspath(path):
        raise StartError(
            "this rank was not told where the job's secret is (HOROVOD_SECRET_FILE is missing): "
            "start the script with horovodrun"
        )
    try:
        descriptor = files.open_trusted(path, files.ANY_ACCESS, follows=True)
        with os.fdopen(descriptor, "rb") as file:
            return check_secret(file.read(SECRET_BYTES + 1))
    except OSError as error:
        raise StartError(
            f"cannot read the job's secret {os.fspath(path)}: {error.strerror}"
        ) from error


def has_given_secret(config: Config) -> bool:
    """Whether the settings of a rank hold the secret of its job, or name the file of it."""
    return bool(config.secret_key or config.secret_file)


def secret_of(config: Config) -> bytes:
    """The secret that a rank's settings hold, or name the file of.

    Raises:
        StartError: see :func:`read_secret`.
    """
    if config.secret_key:
        return check_secret(bytes.fromhex(config.secret_key))
    return read_secret(config.secret_file)
