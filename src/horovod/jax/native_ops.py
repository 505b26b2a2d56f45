"""The library with the custom call, which is registered with JAX.

``libhorovod_jax.so`` is written in C++ against XLA's C interface, which is declared by hand. It
looks the job up when a program runs, by the number of its context (decision 0033).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax

from horovod._train.kernel_jobs import follow_jobs

TARGET = "horovod_jax_collective"
"""The custom call's name in compiled programs."""

_LIBRARY = Path(__file__).resolve().parents[1] / "libhorovod_jax.so"


def _load() -> ctypes.CDLL:
    """The library, which follows the jobs.

    Raises:
        ImportError: it is missing, or of another version; the message says why.
    """
    if not _LIBRARY.exists():
        raise ImportError(
            f"{_LIBRARY} is missing: this Horovod was built without it. Install a wheel, or build "
            "with -DHVD_BUILD_BINDINGS=ON (pip install .)"
        )
    library = ctypes.CDLL(str(_LIBRARY))
    library.horovod_jax_num_started.restype = ctypes.c_int64
    library.horovod_jax_num_ended.restype = ctypes.c_int64
    if mismatch := follow_jobs(library):
        raise ImportError(f"horovod.jax cannot use {_LIBRARY}: {mismatch}")
    return library


def num_ended() -> int:
    """Return how many collectives of programs have ended in this process."""
    count: int = _library.horovod_jax_num_ended()
    return count


def is_in_flight() -> bool:
    """Whether a collective of a program has not ended yet."""
    ended = num_ended()
    return bool(_library.horovod_jax_num_started() > ended)


_library = _load()
jax.ffi.register_ffi_target(
    TARGET, jax.ffi.pycapsule(_library.horovod_jax_collective), platform="cpu"
)
