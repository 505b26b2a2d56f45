"""The line of the user's script that called ``torch.distributed``, for messages."""

from __future__ import annotations

import os
import sys

import torch

_PACKAGES = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
)


def user_call_site() -> str:
    """Return ``file:line`` of the innermost frame outside of PyTorch and this package.

    Returns:
        An empty string if there is none: a thread of PyTorch runs the operation.
    """
    # A chain of look-ups instead of the traceback module: every collective pays for this.
    frame = sys._getframe(1).f_back
    while frame is not None:
        file_name = frame.f_code.co_filename
        if not file_name.startswith(_PACKAGES) and not file_name.startswith("<"):
            return f"{file_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
