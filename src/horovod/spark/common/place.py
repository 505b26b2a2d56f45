"""The host or container of this process, and whether it is on Databricks."""

from __future__ import annotations

import hashlib
import os
import re
import socket

from horovod._settings.config import inherited_environment

_NAMESPACES = "/proc/self/ns"


def host_hash(salt: str | None = None) -> str:
    """A string that is equal for the processes that can share memory and GPUs, and no others.

    It consists of the short name of the host and a digest of its name, the name spaces of this
    process, the container of YARN, and the salt.

    Args:
        salt: makes it another one.
    """
    host = socket.gethostname()
    links = [os.readlink(f"{_NAMESPACES}/{each}") for each in sorted(os.listdir(_NAMESPACES))]
    container = inherited_environment().get("CONTAINER_ID")
    text = "-".join([host, *links, *filter(None, [container, salt])])
    return f"{host.split('.')[0]}-{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}"


def is_databricks() -> bool:
    """Whether this process runs on a cluster of Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in inherited_environment()


def databricks_path(path: str) -> str | None:
    """The path by which Python reaches files of Databricks, ``/dbfs/…`` or ``/Volumes/…``.

    Args:
        path: one of these, ``dbfs:/…``, or either with ``file:`` in front.

    Returns:
        None for any other path.
    """
    local = re.sub(r"^file:(//)?(?=/)", "", path)
    if re.match(r"/(dbfs|Volumes)(/|$)", local):
        return local
    if re.match(r"dbfs:/(?!/)", path):
        inside = path.removeprefix("dbfs:")
        return inside if re.match(r"/Volumes(/|$)", inside) else f"/dbfs{inside}"
    return None
