"""The line of the user's script that called Horovod, for messages about stalls and mismatches."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# PyTorch may put frames of its compiler between the script and this package.
_COMPILER = f"{os.sep}torch{os.sep}_dynamo{os.sep}"


def call_site() -> str:
    """Returns ``file:line`` of the innermost frame outside of this package, or an empty string."""
    # A chain of look-ups instead of the traceback module: every collective pays for this.
    frame = sys._getframe(1).f_back
    while frame is not None:
        file_name = frame.f_code.co_filename
        if not file_name.startswith(_PACKAGE) and _COMPILER not in file_name:
            return f"{file_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
