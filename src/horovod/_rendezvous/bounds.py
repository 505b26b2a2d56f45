"""Check numbers, names and texts from a peer before anything depends on them. Pure.

A peer that knows the secret of a job may still be broken, or hostile to the launcher's machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of a host's name, which has up to 253 characters, and what is made of it.
MOST_NAME = 512
MOST_TEXT = 500
_GAP = re.compile(r"\s*[\x00-\x1f\x7f-\x9f\u2028\u2029]\s*")


def number_in(value: object, least: int, most: int) -> int:
    """Return an integer from a peer.

    Args:
        value: an integer, or its decimal digits.
        least, most: the bounds, themselves included.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, bytes | str) and len(value) <= 24:
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not a number from {least} to {most}")
    return value


def seconds_in(value: object, most: float) -> float:
    """Return a time from a peer: finite, and from 0 to ``most``.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"not a time up to {most:g} s")
    return float(value)


def name_in(value: object) -> str:
    """Return a name from a peer, such as that of a host; it may be empty.

    Raises:
        ValueError: it is too long, or could not be in one word of a line.
    """
    if not isinstance(value, str) or len(value) > MOST_NAME:
        raise ValueError(f"not a name of up to {MOST_NAME} characters")
    if not value.isprintable() or " " in value:
        raise ValueError("a name with blanks or control characters")
    return value


def names_in(values: Iterable[object]) -> None:
    """Refuse names as :func:`name_in` does."""
    for value in values:
        name_in(value)


def one_line(text: str, most: int = MOST_TEXT) -> str:
    """Return any text as one line of limited length.

    Example:
        >>> one_line("it failed:\\n    no route", 12)
        'it failed: …'
    """
    text = _GAP.sub(" ", text[: 8 * most]).strip()
    return text if len(text) <= most else f"{text[: most - 1]}…"
