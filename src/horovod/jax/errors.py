"""Errors of failed collectives: JAX's own in programs of JAX, Horovod's everywhere else."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax

from horovod import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

# JAX raises some as ValueError, depending on where a program runs.
_THEIRS = (jax.errors.JaxRuntimeError, ValueError)
_OURS = re.compile(r"horovod\.errors\.(\w+): (.*)", re.DOTALL)


def translated(error: BaseException) -> BaseException | None:
    """Horovod's error that an error of JAX's tells of, or None if it tells of something else."""
    found = _OURS.search(str(error)) if isinstance(error, _THEIRS) else None
    if found is None:
        return None
    kind = getattr(errors, found.group(1), errors.HorovodInternalError)
    made: BaseException = kind(found.group(2))
    return made


@contextmanager
def in_our_words() -> Iterator[None]:
    """Turns a JaxRuntimeError of a collective into the error of ``horovod.errors``."""
    try:
        yield
    except _THEIRS as error:
        ours = translated(error)
        if ours is None:
            raise
        raise ours from error
