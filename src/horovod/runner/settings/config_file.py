"""The config file of ``horovodrun``: YAML whose keys stand for flags.

What stands before the dot of a key (:mod:`horovod.runner.settings.flags`) is its section. What is
unknown or wrong is refused, with its line.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from horovod.errors import UsageError
from horovod.runner.settings.flags import FLAGS, bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horovod._settings.setting import Setting

CONTROLLERS = ("gloo", "mpi")

Key = tuple[str, ...]
Lines = dict[Key, int]

_BY_KEY = {flag.key: flag for flag in FLAGS}
_BY_OLD_KEY = {flag.hidden_key: flag for flag in FLAGS if flag.hidden_key}
_SECTIONS = {key.partition(".")[0] for key in _BY_KEY}


@dataclass
class ConfigFile:
    """Contents of a config file.

    Attributes:
        values: by :attr:`Setting.attribute`, only what the file sets.
        controller: gloo or mpi; empty if the file does not say.
        advice: one line for each key that should be written otherwise.
    """

    values: dict[str, Any] = field(default_factory=dict)
    controller: str = ""
    advice: list[str] = field(default_factory=list)


def read_config_file(path: str) -> ConfigFile:
    """Read a config file.

    Args:
        path: of the file.

    Raises:
        UsageError: it cannot be read, is not YAML, has unknown keys or values out of bounds; the
            message names file, line and key, and suggests what may have been meant.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}: {error}") from None
    return parse_config(*_load(text, path), path)


def parse_config(document: object, lines: Lines, path: str) -> ConfigFile:
    """Check the contents of a config file.

    Args:
        document: what the file holds; None for an empty file.
        lines: the line of each key, for messages; may be empty.
        path: the name of the file, for messages.

    Raises:
        UsageError: as :func:`read_config_file`.
    """
    config = ConfigFile()
    if document is None:
        return config
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected sections such as 'params:', got {document!r:.60}")
    complaints = []
    for key, value in _entries(document):
        place = f"{path}:{lines[key]}" if key in lines else path
        if complaint := _take(key, value, config, place):
            complaints.append(f"{place}: {complaint}")
    if complaints:
        raise UsageError("\n".join(complaints))
    return config


def _entries(document: Mapping[Any, Any]) -> Iterator[tuple[Key, Any]]:
    """Yield each key of a known section, and each other key of the document, with its value."""
    for section, content in document.items():
        if isinstance(content, dict) and section in _SECTIONS:
            for name, value in content.items():
                yield (section, str(name)), value
        else:
            yield (str(section),), content


def _take(key: Key, value: Any, config: ConfigFile, place: str) -> str:
    """Put a value into the config; return a complaint if it is wrong, else an empty text."""
    name = ".".join(key)
    flag = _BY_KEY.get(name) or _BY_OLD_KEY.get(name)
    if not (flag or name == "controller" or name in _SECTIONS):
        return f"unknown key {name}{_suggestion(key)}"
    if value is None:
        return ""
    if flag is None:
        controller = value.lower() if isinstance(value, str) else value
        if name != "controller":
            return f"{name} is {value!r:.60}, but must be a section with keys of its own"
        if controller not in CONTROLLERS:
            return f"{name} is {value!r:.60}, but must be one of {', '.join(CONTROLLERS)}"
        config.controller = controller
        return ""
    checked = _checked(flag, value)
    if checked is None:
        return f"{name} is {value!r:.60}, but must be {_expected(flag)}"
    if name == flag.key:
        config.values[flag.attribute] = checked
    else:
        config.values.setdefault(flag.attribute, not checked)
        config.advice.append(f"{place}: {name} is deprecated; use {flag.key}")
    return ""


def _checked(flag: Setting, value: Any) -> Any:
    """Return a value as the flag has it; None if it is of another kind or out of bounds."""
    kind = flag.flag_kind
    if flag.words:
        word = "off" if value is False else value  # YAML 1.1 reads a bare ``off`` as false
        word = word.upper() if flag.capitals and isinstance(word, str) else word
        return word if word in flag.choices else None
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind is str:
        return str(value) if isinstance(value, (str, int) if flag.kind is tuple else str) else None
    if not isinstance(value, int if kind is int else (int, float)):
        return None
    minimum, maximum = flag.limits
    return kind(value) if math.isfinite(value) and minimum <= value <= maximum else None


def _expected(flag: Setting) -> str:
    if flag.words:
        return f"one of {', '.join(flag.choices)}"
    if flag.flag_kind is bool:
        return "true or false"
    if flag.flag_kind is str:
        return "text"
    noun = "an integer" if flag.flag_kind is int else "a number (with a dot, such as 0.5)"
    return f"{noun}, {bounds_of(flag)}"


def _suggestion(key: Key) -> str:
    """Name the key of the same section that looks most like it, or a section with such a key."""
    known = ["controller", *_BY_KEY]
    elsewhere = [name for name in known if name.partition(".")[2] == key[-1]]
    if len(key) == 1:
        tops = _SECTIONS | {"controller"}
        similar = elsewhere or difflib.get_close_matches(key[0], tops, n=1)
        return f"; did you mean {similar[0]}?" if similar else _known(tops)
    inside = [name for name in known if name.startswith(f"{key[0]}.")]
    similar = difflib.get_close_matches(".".join(key), inside, n=1, cutoff=0.75) or elsewhere
    return f"; did you mean {similar[0]}?" if similar else _known(inside)


def _known(names: set[str] | list[str]) -> str:
    return f"; there are {', '.join(sorted(names))}"


# -- YAML


def _load(text: str, path: str) -> tuple[object, Lines]:
    """The document, and the line of each key of its two upper levels."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines: Lines = {}
        _collect_lines(node, (), lines, path)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = path if mark is None else f"{path}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{place}: not YAML: {problem}") from None
    finally:
        loader.dispose()


def _collect_lines(node: yaml.Node, above: tuple[str, ...], lines: Lines, path: str) -> None:
    if not isinstance(node, yaml.MappingNode) or len(above) == 2:
        return
    for key_node, value_node in node.value:
        key = (*above, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key in lines:
            raise UsageError(
                f"{path}:{line}: {'.'.join(key)} is given twice, first in line {lines[key]}"
            )
        lines[key] = line
        _collect_lines(value_node, key, lines, path)
