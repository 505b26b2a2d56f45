"""Find placeholders in lines, and put values in their place. Pure.

A shell reads the line afterward. A value that is a whole word for the shell is quoted if it is not
a plain one. Inside quotes and inside words it stays as it is: there the user has chosen the quotes.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_PLACEHOLDER = re.compile(r"(?<![{$])\{\{\s*([\w-]+)\s*\}\}")
# What begins as a placeholder does, up to its end or that of the line.
_BRACES = re.compile(r"\$?\{\{+(?:(?!\{\{)[^\n])*?(?:\}\}+|(?=\{\{)|$)", re.MULTILINE)
# Of other templates: ${{ name }}, {{{name}}}, {{name|filter}}, {{ name.field }}.
_FOREIGN = re.compile(
    r"\$\{\{\s*[\w.-]+\s*\}\}|\{\{\{+\s*[\w.-]+\s*\}\}|\{\{\s*[A-Za-z_][\w-]*(?:[.([]|\s*\|)"
)
_NAME = re.compile(r"[\w-]+")
_CONTINUED = "\\\n"
_ENDS_WORD = frozenset(" \t\n;&|()<>`")

# What a shell reads at once, outside of double quotes, and inside of them.
_OUTSIDE = re.compile(
    r"""(?P<escaped>\\.) | (?P<single>'[^']*'?|\$'(?:\\.|[^'\\])*'?) | (?P<double>\$?")
    | (?P<arithmetic>\$?\(\() | (?P<command>\$?\(|`) | (?P<braces>\$\{) | <<<
    | (?P<heredoc><<-?[ \t]*(?:(?P<quoted>'[^'\n]+'|"[^"\n]+"|\\[\w.-]+)|[\w.-]+))
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*) | (?P<newline>\n) | .""",
    re.VERBOSE | re.DOTALL,
)
_INSIDE = re.compile(
    r"(?P<escaped>\\.)|(?P<arithmetic>\$\(\()|(?P<command>\$\(|`)|(?P<braces>\$\{)|.", re.DOTALL
)
_CLOSES = {"double": '"', "arithmetic": "))", "braces": "}"}


class Place(Enum):
    """Context of a placeholder in the syntax of a shell."""

    ALONE = auto()
    IN_WORD = auto()
    IN_DOUBLE_QUOTES = auto()
    IN_SINGLE_QUOTES = auto()
    IN_TEXT = auto()
    IN_QUOTED_TEXT = auto()


# What a shell takes as it is, by place; it makes something else of all other values.
_KEPT: dict[Place, Callable[[str], bool]] = {
    Place.ALONE: lambda value: True,
    Place.IN_WORD: lambda value: not value or shlex.quote(value) == value,
    Place.IN_DOUBLE_QUOTES: lambda value: not set(value) & set('"$`\\'),
    Place.IN_SINGLE_QUOTES: lambda value: "'" not in value,
    Place.IN_TEXT: lambda value: not set(value) & set("$`\\\n"),
    Place.IN_QUOTED_TEXT: lambda value: "\n" not in value,
}


@dataclass(frozen=True)
class Placeholder:
    """The name of a parameter between double braces.

    Attributes:
        name: of the parameter.
        start, end: where it is in the line.
        place: what a shell finds around it.
    """

    name: str
    start: int
    end: int
    place: Place

    def filled(self, value: str) -> str:
        """Return what takes its place."""
        return shlex.quote(value) if self.place is Place.ALONE else value

    def keeps(self, value: str) -> bool:
        """Return whether the program gets the value as it is written."""
        return _KEPT[self.place](value)


@lru_cache(maxsize=1024)
def placeholders_in(line: str) -> tuple[Placeholder, ...]:
    """Return the placeholders of a line, in their order."""
    if "{{" not in line:
        return ()
    places = places_in(line)
    return tuple(
        Placeholder(found[1], *found.span(), _place_of(line, found, places))
        for found in _PLACEHOLDER.finditer(line)
    )


def fill_line(line: str, values: Mapping[str, str]) -> str:
    """Return the line with values in place of its placeholders; those without a value stay."""
    parts, end = [], 0
    for each in placeholders_in(line):
        if each.name in values:
            parts += [line[end : each.start], each.filled(values[each.name])]
            end = each.end
    return "".join([*parts, line[end:]])


def malformed(line: str, parameters: Collection[str]) -> Iterator[str]:
    """Yield what looks like a placeholder and is none, so that a program would get the braces.

    Double braces that other programs use, as in ``docker ps --format '{{.ID}}'``, are left alone.

    Args:
        line: of the job file.
        parameters: their names.
    """
    known = {each.start for each in placeholders_in(line)}
    for found in _BRACES.finditer(line):
        if found.start() not in known:
            names = set(_NAME.findall(found[0]))
            if names & set(parameters) or _FOREIGN.match(found[0]):
                yield found[0]


def _place_of(line: str, found: re.Match[str], places: list[Place]) -> Place:
    start, end = found.span()
    if places[start] is not Place.ALONE:
        return places[start]
    while line[:start].endswith(_CONTINUED):
        start -= len(_CONTINUED)
    while line.startswith(_CONTINUED, end):
        end += len(_CONTINUED)
    begins = start == 0 or (line[start - 1] in _ENDS_WORD and places[start - 1] is Place.ALONE)
    ends = end == len(line) or line[end] in _ENDS_WORD
    return Place.ALONE if begins and ends else Place.IN_WORD


def places_in(line: str) -> list[Place]:
    """Return what a shell finds around each character: ALONE outside of all quotes."""
    places: list[Place] = []
    opened: list[tuple[str, Place]] = []  # what closes each, and what is inside of it
    heredocs: list[tuple[str, Place]] = []
    while (at := len(places)) < len(line):
        closes, place = opened[-1] if opened else ("", Place.ALONE)
        if closes and line.startswith(closes, at):
            opened.pop()
            places += [place] * len(closes)
            continue
        found = (_OUTSIDE if place is Place.ALONE else _INSIDE).match(line, at)
        assert found is not None
        kind, text = found.lastgroup or "", found[0]
        inner = place
        match kind:
            case "escaped" if place is Place.ALONE and text != _CONTINUED:
                inner = Place.IN_WORD
            case "single":
                inner = Place.IN_SINGLE_QUOTES
            case "comment":
                inner = Place.IN_QUOTED_TEXT
            case "double":
                opened.append(('"', Place.IN_DOUBLE_QUOTES))
            case "command":
                opened.append(("`" if text == "`" else ")", Place.ALONE))
            case "arithmetic":
                opened.append(("))", Place.IN_WORD))
            case "braces":
                opened.append(("}", Place.IN_WORD if place is Place.ALONE else place))
            case "heredoc":
                word = text.lstrip("<- \t").strip("'\"\\")
                heredocs.append((word, Place.IN_QUOTED_TEXT if found["quoted"] else Place.IN_TEXT))
        places += [inner] * len(text)
        if kind == "newline" and heredocs:
            places += _bodies(line, at + 1, heredocs)
            heredocs.clear()
    return places


def _bodies(line: str, start: int, heredocs: list[tuple[str, Place]]) -> list[Place]:
    """Return the places of the texts behind a line with ``<<WORD``, up to the last such word."""
    places: list[Place] = []
    for word, place in heredocs:
        for text in line[start + len(places) :].splitlines(keepends=True):
            places += [place] * len(text)
            if text.strip("\t\n") == word:
                break
    return places
