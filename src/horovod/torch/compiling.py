"""Keeping torch.compile away from what cannot be traced: the engine."""

from __future__ import annotations

from inspect import isfunction
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
C = TypeVar("C", bound=type)


def outside_of_graphs(function: F) -> F:
    """Makes torch.compile end its graph before a call of the function and begin another after it.

    The function runs as if nothing were compiled, and so does all that it calls. This is
    ``torch.compiler.disable`` without its price: that imports the compiler, which takes seconds,
    and puts a frame of its own around every call.

    Args:
        function: one that reaches the engine; also one that autograd calls while a compiled
            function runs.

    Returns:
        The function itself, or a wrapper where PyTorch does not offer the cheaper way.
    """
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(function.__code__, strategy)
    except AttributeError:
        wrapped: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return wrapped
    # The strategy is for a call from Python; this is for the compiler that looks into a caller.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def methods_outside_of_graphs(cls: C) -> C:
    """Do the same for all methods of a class whose objects PyTorch's own code calls."""
    for name, method in list(vars(cls).items()):
        if isfunction(method):
            setattr(cls, name, outside_of_graphs(method))
    return cls
