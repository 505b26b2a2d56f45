"""The line of the user's script that called Horovod, for messages about stalls and mismatches."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def call_site() -> str:
    """Returns ``file:line`` of the innermost frame outside of this package, or an empty string."""
    # A chain of look-ups instead of the traceback module: every collective pays for this.
    frame = sys._getframe(1).f_back
    while frame is not None:
        file_name = frame.f_code.co_filename
        if not file_name.startswith(_PACKAGE):
            return f"{file_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
