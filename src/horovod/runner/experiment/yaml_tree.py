"""YAML as plain data, with the place of everything in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

Path = tuple[str | int, ...]
MOST_LEVELS = 30
# Aliases can make a short file a huge one.
MOST_VALUES = 100_000
_MERGE = "tag:yaml.org,2002:merge"
# What YAML 1.1 and 1.2 take for the same number.
_PLAIN_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        re.IGNORECASE,
    ),
}


@dataclass(frozen=True, order=True)
class Problem:
    """Something in a file that is wrong, or doubtful.

    Attributes:
        line, column: where, from 1.
        path: of the key, such as ``train.resources.gpus``.
        text: what is wrong, and what to do.
    """

    line: int
    column: int
    path: str
    text: str


@dataclass
class Document:
    """The contents of a file.

    Attributes:
        data: dictionaries, lists and scalars; None for an empty file.
        positions: line and column of each value, and of each key at the path that ends with it.
        problems: what is wrong with the YAML itself.
    """

    data: Any = None
    positions: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, text: str) -> Problem:
        """One that concerns what stands at a path, or the nearest thing around it."""
        known = path
        while known and known not in self.positions:
            known = known[:-1]
        line, column = self.positions.get(known, (1, 1))
        return Problem(line, column, dotted(path), text)


def dotted(path: Path) -> str:
    """``("train", "run", 0)`` as ``train.run[0]``. Pure."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def load(text: str, is_raw: Callable[[Path], bool]) -> Document:
    """Reads YAML. Pure.

    Args:
        text: of the file.
        is_raw: whether a scalar at a path is taken as it is written, so that 1.10 stays 1.10.
    """
    try:
        if problem := _unfit(text):
            return Document(problems=[problem])
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = ", ".join(filter(None, [error.context, error.problem]))
        return Document(problems=[Problem(line, column, "", f"this is not YAML: {what}")])
    except yaml.YAMLError as error:  # a character that no YAML has
        return Document(problems=[Problem(1, 1, "", f"this is not YAML: {error}")])
    document = Document()
    if node is not None:
        document.data = _Reader(document, is_raw).value_of(node, ())
    return document


def _unfit(text: str) -> Problem | None:
    """Report what is nested too deeply to be read, or has a tag such as ``!!binary``.

    Raises:
        YAMLError: it is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        mark = event.start_mark
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_LEVELS:
            what = f"there are more than {MOST_LEVELS} levels"
        elif getattr(event, "tag", None) not in (None, "!"):
            what = f"tags such as {event.tag} have no meaning here: leave them out"
        else:
            continue
        return Problem(mark.line + 1, mark.column + 1, "", what)
    return None


class _Reader:
    """Turns nodes into data, and notes where they stand."""

    def __init__(self, document: Document, is_raw: Callable[[Path], bool]) -> None:
        self._document = document
        self._is_raw = is_raw
        self._scalars = yaml.SafeLoader("")
        self._num_values = 0

    def value_of(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node; what cannot be read is a problem, and None."""
        mark = node.start_mark
        self._document.positions.setdefault(path, (mark.line + 1, mark.column + 1))
        self._num_values += 1
        if self._num_values > MOST_VALUES:
            if self._num_values == MOST_VALUES + 1:
                self._complain(
                    (), f"the file has more than {MOST_VALUES} values: is an alias recursive?"
                )
            return None
        if len(path) > MOST_LEVELS:
            self._complain(path, f"there are more than {MOST_LEVELS} levels")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, path)
        return self._scalar(node, path)

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        found = []
        for index, each in enumerate(node.value):
            if self._num_values > MOST_VALUES:
                break
            found.append(self.value_of(each, (*path, index)))
        return found

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, yaml.ScalarNode):
                place = mark.line + 1, mark.column + 1, dotted(path)
                self._document.problems.append(Problem(*place, "a key must be a word"))
                continue
            key = (*path, key_node.value)
            if key_node.tag == _MERGE:
                place = mark.line + 1, mark.column + 1, dotted(key)
                text = "keys are not merged: repeat those of the alias here"
                self._document.problems.append(Problem(*place, text))
                continue
            if key_node.value in found:
                first = self._document.positions[key][0]
                place = mark.line + 1, mark.column + 1, dotted(key)
                text = f"this key is given twice; the first is in line {first}"
                self._document.problems.append(Problem(*place, text))
                continue
            self._document.positions[key] = mark.line + 1, mark.column + 1
            found[key_node.value] = self.value_of(value_node, key)
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        if self._is_raw(path) and node.tag != "tag:yaml.org,2002:null":
            return node.value
        try:
            value = self._scalars.construct_object(node)
            plain = _PLAIN_NUMBERS.get(node.tag)
            is_foreign = any(str(part).startswith("x-") for part in path)  # for other programs
            if plain is not None and not is_foreign and not plain.fullmatch(node.value):
                self._complain(path, _two_meanings(node.value, value))
            return value
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self._complain(path, f"{node.value!r} cannot be read: {reason}")
            return None

    def _complain(self, path: Path, text: str) -> None:
        self._document.problems.append(self._document.problem(path, text))


def _two_meanings(text: str, value: int | float) -> str:
    """Return the message for a number that only YAML 1.1 reads in this way."""
    other = text.replace("_", "").lstrip("+-0")
    if text.replace("_", "").lstrip("+-").isdecimal() and other and "_" not in text:
        return f"{text} is {value} for YAML 1.1 and {other} for YAML 1.2: write the one you mean"
    return f"{text} is {value} for YAML 1.1 only: write {value}, or quote the text"
