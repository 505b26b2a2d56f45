"""The line of the user's script that called Horovod, for messages about stalls and mismatches."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# PyTorch and JAX may put frames of their compilers between the script and this package.
_OF_TORCH = f"{os.sep}torch{os.sep}_dynamo{os.sep}"
_OF_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"
# By file name, as every collective asks again. Programs that make code without end make names, too.
_belongs_to_script: dict[str, bool] = {}
_MOST_FILES = 4096


def _note(file_name: str) -> bool:
    belongs = not (file_name.startswith(_PACKAGE) or _OF_TORCH in file_name or _OF_JAX in file_name)
    if len(_belongs_to_script) >= _MOST_FILES:
        _belongs_to_script.clear()
    _belongs_to_script[file_name] = belongs
    return belongs


def call_site() -> str:
    """Returns ``file:line`` of the innermost frame outside of this package, or an empty string."""
    # A chain of look-ups instead of the traceback module: every collective pays for this.
    frame = sys._getframe(1).f_back
    while frame is not None:
        file_name = frame.f_code.co_filename
        belongs = _belongs_to_script.get(file_name)
        if belongs is None:
            belongs = _note(file_name)
        if belongs:
            return f"{file_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
