"""Typed look-ups in a mapping of variables, by the table of settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from horovod._settings import TABLE
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.setting import Setting

_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")


class SettingsReader:
    """Reads variables; an empty one counts as not set.

    Args:
        variables: by name.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    def text(self, name: str) -> str:
        """The text of a variable without spaces around it; empty if it is not set."""
        return self.variables.get(name, "").strip()

    def value(self, name: str) -> Any:
        """The value of a setting, as its kind has it; its default if it is not set.

        Raises:
            StartError: the text makes no sense, or what it asks for is refused.
        """
        setting, text = TABLE[name], self.text(name)
        if not text:
            return setting.default
        value = _parse(setting, text)
        _check_bounds(setting, value)
        return value

    def check_words(self) -> None:
        """Refuses settings whose word asks for what is not there, also if nothing reads them.

        Raises:
            StartError: a word is refused; the message names the way out.
        """
        for setting in TABLE.values():
            if setting.words:
                self.value(setting.name)

    def rank_and_size(self, rank_name: str, size_name: str) -> tuple[int, int]:
        """Return the values of a pair of variables; (0, 1) if neither is set.

        Raises:
            StartError: one of them is set, or the rank is not below the size.
        """
        given = [name for name in (rank_name, size_name) if self.text(name)]
        if not given:
            return 0, 1
        if len(given) == 1:
            missing = size_name if given[0] == rank_name else rank_name
            raise StartError(f"{given[0]} is set but {missing} is not; set both or neither")
        rank = _integer(rank_name, self.text(rank_name))
        size = _integer(size_name, self.text(size_name))
        if size < 1:
            raise StartError(f"{size_name}={size} is not a number of processes")
        if not 0 <= rank < size:
            raise StartError(f"{rank_name}={rank} is not in 0 … {size - 1}, as {size_name}={size}")
        return rank, size


def _parse(setting: Setting, text: str) -> object:
    if setting.words:
        return _word(setting, text)
    if setting.kind is tuple:
        return tuple(_integer(setting.name, part.strip()) for part in text.split(","))
    read = {bool: _flag, int: _integer, float: _number}.get(setting.kind)
    return text if read is None else read(setting.name, text)


def _flag(name: str, text: str) -> bool:
    """Return True for an integer that is not 0 and for true, yes, on."""
    word = text.lower()
    return word in _TRUE or (word not in _FALSE and _integer(name, word) != 0)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise StartError(f"{name}={text!r} is not an integer") from None


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise StartError(f"{name}={text!r} is not a number") from None
    if not math.isfinite(number):
        raise StartError(f"{name}={text!r} is not finite")
    return number


def _word(setting: Setting, text: str) -> str:
    word = text.lower()
    if word not in setting.words:
        hint = f"; {setting.refusal}" if setting.refusal else ""
        raise StartError(f"{setting.name}={text!r} is none of {', '.join(setting.words)}{hint}")
    return word


def _check_bounds(setting: Setting, value: Any) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if setting.maximum is not None and number > setting.maximum:
            raise StartError(
                f"{setting.name}={number:g} is too large: it must be at most {setting.maximum:g}"
            )
        if setting.minimum is not None and number < setting.minimum:
            raise StartError(
                f"{setting.name}={number:g} is too small: it must be at least {setting.minimum:g}"
            )
