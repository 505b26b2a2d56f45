"""Where the values of ``hvd.log`` go: what HOROVOD_LOG names. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from horovod.errors import StartError

KINDS = {
    "tensorboard": "a folder",
    "jsonl": "a file",
    "mlflow": "a tracking URI, or nothing",
    "wandb": "a project, or nothing",
    "trackio": "a project, or nothing",
}
"""By kind of destination: what follows the colon."""

_NEED_PLACE = ("tensorboard", "jsonl")
# User and password in a URI.
_CREDENTIALS = re.compile(r"//[^/]+@")


class Destination(NamedTuple):
    """One place for logged values.

    Attributes:
        kind: a key of :data:`KINDS`.
        place: the folder, file, URI or project; empty where the library's own settings decide.
    """

    kind: str
    place: str

    def __str__(self) -> str:
        """Return the text for messages, without user and password of a URI."""
        return _without_credentials(f"{self.kind}:{self.place}" if self.place else self.kind)


def parse_destinations(text: str) -> tuple[Destination, ...]:
    """Return the destinations of a text such as ``tensorboard:runs,jsonl:metrics.jsonl,mlflow``.

    Args:
        text: words of :data:`KINDS`, separated by commas, each with ``:PLACE`` or without; so a
            place has no comma.

    Raises:
        StartError: a word is unknown, lacks its place, or is given twice.
    """
    found: list[Destination] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        kind, _, place = word.partition(":")
        destination = Destination(kind.strip(), place.strip())
        if problem := _problem_of(destination, found):
            raise StartError(f"HOROVOD_LOG={_without_credentials(text)!r}: {problem}")
        found.append(destination)
    return tuple(found)


def _problem_of(destination: Destination, earlier: list[Destination]) -> str:
    kind, place = destination
    if kind not in KINDS:
        return f"{kind!r} is none of {', '.join(KINDS)}"
    if not place and kind in _NEED_PLACE:
        return f"{kind} needs {KINDS[kind]} behind a colon, such as {kind}:metrics"
    if destination in earlier:
        return f"{destination} is given twice"
    return ""


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub("//***@", text)
