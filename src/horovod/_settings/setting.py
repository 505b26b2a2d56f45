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

    HONORED = "honored"
    PLACE = "set by the launcher for each rank"
    DEPRECATED = "honored, but to be replaced"
    WITHOUT_EFFECT = "accepted without effect"
    BUILD = "accepted without effect; it concerned the build"


@dataclass(frozen=True)
class Spelling:
    """How the command line and the config file of ``horovodrun`` take a setting.

    Attributes:
        name: of the flag without dashes in front; of a switch, the words that turn it on.
        key: of the config file, as ``section.key``; the section is also the heading in ``--help``.
        help: one line; empty for the meaning of the setting.
        off: the words that turn a switch off; empty for the name after ``no-``.
        aliases: older (on, off) spellings of a switch.
        hidden_key: an older key of the config file; of a switch, it means the opposite.
        scale: what one unit of the flag is in units of the variable.
        whole: whether a number is an integer here.
        negated: a switch whose variable means the opposite.
        capitals: whether words are in capitals here.
        needs: the name of another flag without which this one is not passed on.
    """

    name: str
    key: str
    help: str = ""
    off: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    hidden_key: str = ""
    scale: int = 1
    whole: bool = False
    negated: bool = False
    capitals: bool = False
    needs: str = ""


@dataclass(frozen=True)
class Setting:
    """One variable.

    Attributes:
        name: of the variable.
        meaning: what it does with its unit; for one without effect, why nothing acts on it.
        status: what becomes of it.
        kind: how its text is read.
        default: the value if it is unset or empty.
        flag: of ``horovodrun``: how it spells the setting, or the name of an option of its own.
        field: of Config; empty if Config holds it in another form, or not at all.
        minimum, maximum: the least and the greatest number that make sense.
        words: the only words allowed, in lower case; any other is refused.
        refusal: what to do instead, for a word that is refused.
        replacement: the variable to use instead of one that is deprecated.
        shown: the default as the documentation shows it; empty for the default itself.
    """

    name: str
    meaning: str
    status: Status = Status.HONORED
    kind: Kind = Kind.TEXT
    default: object = ""
    flag: Spelling | str = ""
    field: str = ""
    minimum: float | None = None
    maximum: float | None = None
    words: tuple[str, ...] = ()
    refusal: str = ""
    replacement: str = ""
    shown: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags as they are written; of a switch, first the one that sets the variable to 1."""
        if isinstance(self.flag, str):
            return (self.flag,) if self.flag else ()
        words = [self.flag.name]
        if self.kind is Kind.FLAG:
            words.insert(not self.flag.negated, self.flag.off or f"no-{self.flag.name}")
        return tuple(f"--{word}" for word in words)
