"""The requirements of horovod.jax, with one sentence for each that is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from horovod.errors import HorovodVersionMismatchError

_OLDEST = (0, 6, 0)
_ADVICE = 'pip install "jax>=0.6"'


def checked_jax() -> Any:
    """The module of JAX.

    Raises:
        ImportError: JAX is missing, too old, or speaks another C interface; the message says what
            to install.
    """
    try:
        import jax
        import jax.ffi
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise ModuleNotFoundError(
            f"horovod.jax needs JAX 0.6 or newer: {_ADVICE}", name="jax"
        ) from None
    found = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
    if found < _OLDEST:
        raise HorovodVersionMismatchError("jax", "0.6 or newer", jax.__version__)
    _check_c_interface(Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h")
    return jax


def _check_c_interface(header: Path) -> None:
    """Whether XLA takes a library that declares the version 0.1 of its C interface."""
    text = header.read_text(errors="replace") if header.exists() else ""
    version = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    major, minor = (int(found.group(1)) if found else None for found in version)
    if (major == 0 and minor == 0) or major not in (None, 0):
        raise ImportError(
            f"horovod.jax speaks version 0.1 of XLA's C interface, but this jaxlib has {major}."
            f"{minor}: {_ADVICE}, or a newer Horovod"
        )
