"""Drops what TensorFlow prints at each start, as it does not explain a failure. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# How its native code begins a line: before absl logs, and since.
_LINE = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<old>[IWEF]) (?:\S*/)?"
    r"|(?P<new>[IWEF])\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ )(?P<file>[\w.]+\.cc):\d+\]"
)
# Whoever complains here misses a GPU, or registers twice what it needs once.
_ABOUT_GPUS = re.compile(
    r"cuda_\w+\.cc|gpu_device\.cc|dso_loader\.cc|computation_placer\.cc|rocm_\w+\.cc|py_utils\.cc"
)
_OTHERS = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|To enable (?:the following instructions|them in other operations)\b"
    r"|Skipping registering GPU devices\.\.\."
)


def without_greetings(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines that do not come with each start of TensorFlow.

    Args:
        lines: of the stderr of a rank.
    """
    return tuple(line for line in lines if not _is_greeting(line))


def _is_greeting(line: str) -> bool:
    match = _LINE.match(line)
    if match is None:
        return _OTHERS.match(line) is not None
    severity = match["old"] or match["new"]
    return severity == "I" or (severity != "F" and bool(_ABOUT_GPUS.fullmatch(match["file"])))
