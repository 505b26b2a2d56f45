"""The line of the user's script that called Horovod, for messages about stalls and mismatches."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# PyTorch and JAX may put frames of their compilers between the script and this package.
_OF_TORCH = f"{os.sep}torch{os.sep}_dynamo{os.sep}"
_OF_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"


def call_site() -> str:
    """Returns ``file:line`` of the innermost frame outside of this package, or an empty string."""
    # A chain of look-ups instead of the traceback module: every collective pays for this.
    frame = sys._getframe(1).f_back
    while frame is not None:
        file_name = frame.f_code.co_filename
        is_ours = file_name.startswith(_PACKAGE)
        if not (is_ours or _OF_TORCH in file_name or _OF_JAX in file_name):
            return f"{file_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
