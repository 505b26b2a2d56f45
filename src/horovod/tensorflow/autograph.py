"""AutoGraph rewrites what a ``tf.function`` calls; nothing here depends on values of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def as_written(function: F) -> F:
    """Keeps AutoGraph from rewriting a function and all that it calls, which takes time.

    Args:
        function: chooses by ``tf.cond`` where it has to.
    """
    return cast("F", tf.autograph.experimental.do_not_convert(function))
