"""One variable of the environment, as data."""

from __future__ import annotations

from dataclasses import field, fields
from enum import Enum
from math import inf
from typing import Any, TypeVar

from horovod._base.fast_dataclass import dataclass

Value = TypeVar("Value")


class Status(Enum):
    """The effect of a variable that is set."""

    HONORED = "honored"
    PLACE = "set by the launcher for each rank"
    DEPRECATED = "honored, but to be replaced"
    WITHOUT_EFFECT = "accepted without effect"
    BUILD = "accepted without effect; it concerned the build"


@dataclass(frozen=True)
class Setting:
    """One variable, and how the command line and the config file of ``horovodrun`` take it.

    Attributes:
        name: of the variable.
        meaning: what it does with its unit; for one without effect, why nothing acts on it.
        default: the value if it is unset or empty.
        status: what becomes of it.
        kind: bool, int, float, str or tuple (of integers); the type of the default if not given.
        minimum, maximum: the least and the greatest number allowed.
        words: the only words allowed, in lower case; any other is refused.
        refusal: what to do instead, for a word that is refused.
        replacement: the variable to use instead of one that is deprecated.
        shown: the default as the documentation shows it; empty for the default itself.
        flag: of ``horovodrun``, without dashes in front; of a switch, the words that turn it on.
        key: of the config file, as ``section.key``; empty for a flag that no config file has.
        help: of the flag, one line; empty for the meaning.
        off: the words that turn a switch off; empty for the flag after ``no-``.
        aliases: older (on, off) spellings of a switch.
        hidden_key: an older key of the config file; of a switch, it means the opposite.
        scale: what one unit of the flag is in units of the variable.
        whole: whether a number is an integer on the command line.
        negated: a switch whose variable means the opposite.
        capitals: whether words are in capitals on the command line.
        needs: another flag without which this one is not passed on.
    """

    name: str
    meaning: str
    default: Any = ""
    status: Status = Status.HONORED
    kind: Any = None
    minimum: float | None = None
    maximum: float | None = None
    words: tuple[str, ...] = ()
    refusal: str = ""
    replacement: str = ""
    shown: str = ""
    flag: str = ""
    key: str = ""
    help: str = ""
    off: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    hidden_key: str = ""
    scale: int = 1
    whole: bool = False
    negated: bool = False
    capitals: bool = False
    needs: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.kind or type(self.default))
        if self.kind is bool and self.flag:
            object.__setattr__(self, "off", self.off or f"no-{self.flag}")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags as they are written; of a switch, first the one that sets the variable to 1."""
        words = (self.off, self.flag) if self.negated else (self.flag, self.off)
        return tuple(f"--{word}" for word in words if word)

    @property
    def attribute(self) -> str:
        """The key under which the parsed value of the flag is found."""
        return self.flag.replace("-", "_")

    @property
    def flag_kind(self) -> type[int] | type[float] | type[str] | type[bool]:
        """The type of the flag's value; bool for a switch, str for integers with commas between."""
        return int if self.whole else {bool: bool, int: int, float: float}.get(self.kind, str)

    @property
    def choices(self) -> tuple[str, ...]:
        """The only texts that the flag allows; empty if it allows any."""
        return tuple(word.upper() if self.capitals else word for word in self.words)

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest number that the flag allows."""
        maximum = inf if self.maximum is None else self.maximum
        return (self.minimum or 0) / self.scale, maximum / self.scale


def setting(name: str, meaning: str, default: Value, *, repr: bool = True, **row: Any) -> Value:
    """Return a field of a dataclass that holds a setting; its row goes into the metadata.

    Args:
        name, meaning, default: as of Setting.
        repr: whether the value may be printed.
        row: further attributes of Setting.
    """
    row_of_field = Setting(name, meaning, default, **row)
    return field(default=default, repr=repr, metadata={"setting": row_of_field})


def settings_by_field(holder: type[Any]) -> dict[str, Setting]:
    """Return the rows of a dataclass whose fields are settings."""
    return {field.name: field.metadata["setting"] for field in fields(holder)}
