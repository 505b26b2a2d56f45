"""Tell which run of autograd a hook is part of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from types import FrameType

_RUNS = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)
_FUNCTIONS = BackwardCFunction.apply.__code__


def current_run() -> int:
    """The number of the run of autograd that calls this; later runs have greater numbers."""
    return torch._C._current_graph_task_id()


def is_nested() -> bool:
    """Whether the run of autograd that calls this is part of another one.

    A checkpoint with ``use_reentrant=True``, for example, calls ``backward()`` in its own backward
    function.
    """
    frame: FrameType | None = sys._getframe()
    in_run = False
    while frame is not None:
        in_run = in_run or frame.f_code in _RUNS
        if in_run and frame.f_code is _FUNCTIONS:
            return True
        frame = frame.f_back
    return False
