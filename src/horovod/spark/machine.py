"""Which ranks share a machine, so that they may share memory and GPUs."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path

_NAMESPACES = Path("/proc/self/ns")


def machine_name(salt: str = "") -> str:
    """A name of this host, or of the container on it: equal where processes can share memory.

    Args:
        salt: makes another name of it.

    Returns:
        The short name of the host, ``-`` and a digest.
    """
    host = socket.gethostname()
    parts = [host, salt]
    with suppress(OSError):  # no Linux, or /proc is hidden
        parts += [os.readlink(each) for each in sorted(_NAMESPACES.iterdir())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{host.partition('.')[0]}-{digest[:16]}"
