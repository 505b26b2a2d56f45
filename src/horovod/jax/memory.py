"""Memory that a program of XLA frees stays with the process, for its next step.

XLA allocates the gradients of a step in a thread of its own. There, glibc keeps no more than 64 MiB
of free memory; what is above goes back to the kernel after each step, and costs the next step its
pages again. The arena of the main thread has no such limit.
"""

from __future__ import annotations

import ctypes
import os
from importlib.metadata import entry_points

from horovod._settings.config import inherited_environment

# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 2**30
_OWN_WISHES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)


def keep_freed_memory() -> bool:
    """Let all threads that start from now on share the arena that keeps what they free.

    XLA's threads start with its first array, so this comes before it. With a GPU, gradients are
    not in this memory, and threads that load data may allocate side by side. If one of glibc's own
    variables is set, nothing is changed.

    Returns:
        Whether glibc was told so.
    """
    environ = inherited_environment()
    if any(environ.get(name) for name in _OWN_WISHES) or not _is_glibc():
        return False
    if entry_points(group="jax_plugins"):  # of GPUs and other devices
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = (
        (_ARENA_MAX, 1),
        (_MMAP_THRESHOLD, _LARGE_BYTES),
        (_TRIM_THRESHOLD, _LARGE_BYTES),
    )
    return all(set_option(option, value) == 1 for option, value in options)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except ValueError:  # another library does not know the name
        return False
