"""The token of a user for metrics: in a private file, the same for all jobs, for Prometheus."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from horovod._base import files
from horovod.errors import UsageError

_TOKEN_BYTES = 32


def token_path() -> Path:
    """Return the file of the token."""
    return Path.home() / ".horovod" / "metrics.token"


def user_token() -> str:
    """Return the token of this user; create it at first, readable by its owner only.

    Raises:
        UsageError: it cannot be written, was damaged, or others can read it.
    """
    path = token_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _create(path)
        with os.fdopen(files.open_trusted(path, files.ANY_ACCESS), encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot use the token for metrics in {path}: {error}") from None
    if len(token) != 2 * _TOKEN_BYTES:  # an empty one would let anybody in
        raise UsageError(f"{path} has no token: remove it, and a new one is made")
    return token


def _create(path: Path) -> None:
    """Write a token, whole from the first moment on; another job may do so at the same time."""
    with suppress(FileExistsError), files.writing_whole(path, 0o600, replaces=False) as stream:
        stream.write(secrets.token_hex(_TOKEN_BYTES).encode())
