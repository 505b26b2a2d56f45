"""Small functions of earlier versions that libraries import; this version does without them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.tensorflow.interface_types import Variable

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"]


def vars_to_refs(vars: Variable) -> Any:
    """Hashable references of variables; a list or a tuple of variables gives a tuple of them."""
    if isinstance(vars, list | tuple):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of references that :func:`vars_to_refs` made; those of a tuple as a list."""
    if isinstance(refs, list | tuple):
        return [refs_to_vars(reference) for reference in refs]
    return refs.deref()


def _executing_eagerly() -> bool:
    """Whether operations run at once, and are not put into a graph."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: F) -> F:
    """The function as a ``tf.function``, which is traced once for each kind of arguments."""
    made: F = tf.function(function)
    return made


def _cache(function: F) -> F:
    """Calls the function once for each combination of arguments, which must be hashable."""
    cached: F = functools.cache(function)  # type: ignore[assignment]
    return cached
