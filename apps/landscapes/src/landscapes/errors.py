"""The error that the command line reports in one line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class LandscapesError(Exception):
    """Input or settings that cannot be used; the text names the place, the problem and a remedy.

    The command line prints the text without a traceback and exits with status 2.
    """


@contextlib.contextmanager
def naming_failure(path: Path) -> Iterator[None]:
    """Raise a LandscapesError that names ``path`` where writing it fails, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise LandscapesError(f"{path} cannot be written: {error.strerror or error}.") from error
