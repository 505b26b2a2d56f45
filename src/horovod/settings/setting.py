"""One variable of the environment, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How the text of a variable is read."""

    TEXT = "text"
    FLAG = "0 or 1"
    INTEGER = "integer"
    INTEGERS = "integers, comma between"
    NUMBER = "number"
    WORD = "word"


class Status(Enum):
    """What becomes of a variable that is set."""

    HONOURED = "honoured"
    PLACE = "set by the launcher for each rank"
    DEPRECATED = "honoured, but to be replaced"
    WITHOUT_EFFECT = "accepted without effect"
    BUILD = "accepted without effect; it concerned the build"


@dataclass(frozen=True)
class Setting:
    """One variable.

    Attributes:
        name: of the variable.
        meaning: what it does with its unit; for one without effect, why nothing acts on it.
        status: what becomes of it.
        kind: how its text is read.
        default: the value if it is unset or empty.
        flag: of ``horovodrun``; the flags that turn a switch on and off are joined by a comma.
        field: of Config; empty if Config holds it in another form, or not at all.
        minimum: the least number that makes sense.
        words: the only words allowed, in lower case; any other is refused.
        refusal: what to do instead, for a word that is refused.
        replacement: the variable to use instead of one that is deprecated.
        shown: the default as the documentation shows it; empty for the default itself.
    """

    name: str
    meaning: str
    status: Status = Status.HONOURED
    kind: Kind = Kind.TEXT
    default: object = ""
    flag: str = ""
    field: str = ""
    minimum: float | None = None
    words: tuple[str, ...] = ()
    refusal: str = ""
    replacement: str = ""
    shown: str = ""
