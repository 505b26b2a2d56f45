"""What jobs listen on, open and unpickle, and what docs/security.md says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

SECURITY = Path(__file__).resolve().parents[2] / "docs" / "security.md"

# The chapter of the document that lists each kind of event.
CHAPTERS = {
    "bind": "What listens",
    "read": "Which files are used",
    "write": "Which files are used",
    "unpickle": "What is unpickled",
}


def observed(trail: Path) -> set[tuple[str, str]]:
    """Return what the processes of a job did: kinds of events, and the files of Horovod's code."""
    records = [
        json.loads(line) for file in trail.iterdir() for line in file.read_text().splitlines()
    ]
    return {(event, cause) for event, cause, _ in records}


def listed() -> set[tuple[str, str]]:
    """Return what the document lists, in the form of :func:`observed`."""
    chapters = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", SECURITY.read_text(), re.M | re.S))
    return {
        (event, cause)
        for event, chapter in CHAPTERS.items()
        for row in re.findall(r"^\|.*$", chapters[chapter], re.M)
        for cause in re.findall(r"`src/(horovod/[\w/]+\.py)`", row)
    }
