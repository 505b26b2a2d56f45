"""Refuse a process of another version than its job, and name both versions.

Only processes of the same version work in one job. What they read before they know that must keep
its form within 1.x, and newer versions may only add to it: the messages of the handshake, the
requests of the store, :data:`VERSION_KEY`, the field ``version`` of what ranks, nodes and hosts say
about themselves, and the frame with which an agent says that it runs (decision 0068).
"""

from __future__ import annotations

import json
from typing import Protocol

import horovod
from horovod._rendezvous.bounds import name_in, one_line
from horovod.errors import StartError

VERSION_KEY = "job/version"
"""Has the version of the process that has opened the store: a launcher, or rank 0."""

_REMEDY = "install the same version on all hosts"


class Store(Protocol):
    """The interface of a store that this module uses."""

    def try_get(self, key: str, /) -> bytes | None:
        """Return a value, or None."""

    def add(self, key: str, value: bytes, /) -> bytes | None:
        """Store a value if the key is new."""


def check_version(store: Store, who: str = "this process", *failed_keys: str) -> None:
    """Refuse to take part in a job whose store was opened by another version of Horovod.

    Args:
        store: a connection to the store of the job.
        who: this process, for messages.
        failed_keys: tell the others why they wait in vain; none if they hear of it otherwise.

    Raises:
        StartError: the versions differ; or the store was lost.
    """
    said = store.try_get(VERSION_KEY)
    if said is None or said == horovod.__version__.encode():
        return
    version = one_line(said[:100].decode("utf-8", "replace"))
    text = (
        f"{who} has Horovod {horovod.__version__}, but the process that opened the store of the "
        f"job (the launcher, or rank 0) has Horovod {version}; {_REMEDY}"
    )
    for key in failed_keys:
        store.add(key, text.encode())
    raise StartError(text)


def refuse_other_version(text: bytes, who: str, version: str) -> None:
    """Refuse a record of another version, whatever else is in it, before it is read as one of ours.

    Args:
        text: a JSON object with its ``version``; anything else is for the caller to refuse.
        who: has written it, for the message.
        version: of this process.

    Raises:
        StartError: the versions differ.
    """
    try:
        said = name_in(json.loads(text)["version"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return
    if said != version:
        raise StartError(
            f"{who} has Horovod {said}, this process has {version}: different versions of Horovod "
            f"cannot work in one job; {_REMEDY}"
        )
