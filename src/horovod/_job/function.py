"""Check what can be called on the ranks of a job, and what it can return. Pure."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def check_call(func: object, args: object, kwargs: object, caller: str = "horovod.run") -> None:
    """Makes sure that a function can be called with such arguments.

    Args:
        func, args, kwargs: the call.
        caller: whose arguments these are, for messages.

    Raises:
        UsageError: it cannot.
    """
    if not callable(func):
        raise UsageError(f"{caller}: func is {func!r:.80}, which cannot be called")
    plain: object = func
    while isinstance(plain, functools.partial):
        plain = plain.func
    if _is_one_of(plain, _RUN_LATER):
        raise UsageError(
            f"{caller}: func is {func!r:.80}, a generator or coroutine function: a call runs none "
            "of it, and its result cannot be sent; write a function that returns a list"
        )
    if not isinstance(args, tuple | list):
        raise UsageError(f"{caller}: args is {args!r:.80}; write a tuple, such as ({args!r:.40},)")
    if not isinstance(kwargs, Mapping):
        raise UsageError(f"{caller}: kwargs is {kwargs!r:.80}; write a dictionary")


def check_result(value: object, caller: str) -> None:
    """Make sure that what a function has returned is a result, not a promise of one.

    Args:
        value: what it returned.
        caller: what called it, for messages.

    Raises:
        UsageError: it is a generator or a coroutine, which cannot be sent, and of which nothing has
            run yet.
    """
    if _is_one_of(value, (inspect.isgenerator, inspect.iscoroutine, inspect.isasyncgen)):
        raise UsageError(
            f"{caller}: the function returned a {type(value).__name__}, which cannot be sent to "
            "the caller: return a list"
        )


_RUN_LATER = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


def _is_one_of(value: object, kinds: tuple[Callable[[object], bool], ...]) -> bool:
    return any(is_kind(value) for is_kind in kinds)
