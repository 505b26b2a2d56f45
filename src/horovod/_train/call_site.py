"""The line of the user's script that called Horovod, for messages about stalls and mismatches."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# PyTorch and JAX may put frames of their compilers between the script and this package.
_OF_TORCH = f"{os.sep}torch{os.sep}_dynamo{os.sep}"
_OF_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"
# By file name, as every collective asks again. Programs that make code without end make names, too.
_belongs_to_script: dict[str, bool] = {}
_MOST_FILES = 4096
# By code and place in it: to find the line takes a microsecond. The code is kept, so that no other
# one gets its address.
_sites: dict[tuple[int, int], tuple[CodeType, str]] = {}
_MOST_SITES = 4096


def _note(file_name: str) -> bool:
    belongs = not (file_name.startswith(_PACKAGE) or _OF_TORCH in file_name or _OF_JAX in file_name)
    if len(_belongs_to_script) >= _MOST_FILES:
        _belongs_to_script.clear()
    _belongs_to_script[file_name] = belongs
    return belongs


def _note_site(frame: FrameType) -> str:
    site = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if len(_sites) >= _MOST_SITES:
        _sites.clear()
    _sites[id(frame.f_code), frame.f_lasti] = (frame.f_code, site)
    return site


def call_site() -> str:
    """Returns ``file:line`` of the innermost frame outside of this package, or an empty string."""
    # A chain of look-ups instead of the traceback module: every collective pays for this.
    frame: FrameType | None
    try:
        frame = sys._getframe(2)
    except ValueError:
        return ""
    while frame is not None:
        code = frame.f_code
        known = _sites.get((id(code), frame.f_lasti))
        if known is not None:
            return known[1]
        belongs = _belongs_to_script.get(code.co_filename)
        if belongs is None:
            belongs = _note(code.co_filename)
        if belongs:
            return _note_site(frame)
        frame = frame.f_back
    return ""
