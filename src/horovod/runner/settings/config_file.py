"""The config file of ``horovodrun``: YAML whose keys stand for flags.

The schema follows from the table of flags (:mod:`horovod.runner.settings.flags`): what stands
before the dot of a key is its section. What is unknown or wrong is refused, with its line.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from horovod.errors import UsageError
from horovod.runner.settings.flags import FLAGS, bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.setting import Setting

CONTROLLERS = ("gloo", "mpi")

Lines = dict[tuple[str, ...], int]


@dataclass(frozen=True)
class ConfigFile:
    """What a config file says.

    Attributes:
        values: by :attr:`Setting.attribute`, only what the file sets.
        controller: gloo or mpi; empty if the file does not say.
        advice: one line for each key that should be written otherwise.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    controller: str = ""
    advice: tuple[str, ...] = ()


class _Strict(BaseModel):
    """What all sections have in common: nothing is guessed, nothing is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def read_config_file(path: str) -> ConfigFile:
    """Reads a config file.

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
    """Checks the contents of a config file.

    Args:
        document: what the file holds; None for an empty file.
        lines: where each key stands, for messages; may be empty.
        path: the name of the file, for messages.

    Raises:
        UsageError: as :func:`read_config_file`.
    """
    if document is None:
        return ConfigFile()
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected sections such as 'params:', got {document!r:.60}")
    lowered = dict(document)
    if isinstance(lowered.get("controller"), str):
        lowered["controller"] = lowered["controller"].lower()
    _raise_level(lowered)
    try:
        model = _model().model_validate(lowered)
    except ValidationError as error:
        raise UsageError("\n".join(_complaints(error, lines, path))) from None
    found = model.model_dump(exclude_none=True)
    values, advice = _values_of(found, lines, path)
    return ConfigFile(values, found.get("controller", ""), tuple(advice))


def _values_of(
    found: Mapping[str, Any], lines: Lines, path: str
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    advice = []
    for flag in FLAGS:
        section, _, name = flag.key.partition(".")
        _, _, old = flag.hidden_key.partition(".")
        entries = found.get(section, {})
        if old and old in entries:
            values[flag.attribute] = not entries[old]
            place = _place((section, old), lines, path)
            advice.append(f"{place}: {flag.hidden_key} is deprecated; use {flag.key}")
        if name in entries:
            value = entries[name]
            values[flag.attribute] = str(value) if flag.flag_kind is str else value
    return values, advice


def _raise_level(document: dict[str, Any]) -> None:
    """Levels of the log may be written in small letters, as their variable may."""
    logging = document.get("logging")
    if isinstance(logging, dict) and isinstance(logging.get("level"), str):
        document["logging"] = {**logging, "level": logging["level"].upper()}


# -- the schema


@cache
def _model() -> type[BaseModel]:
    sections: dict[str, dict[str, Any]] = {}
    for flag in FLAGS:
        section, _, name = flag.key.partition(".")
        sections.setdefault(section, {})[name] = (
            _type_of(flag) | None,
            Field(None, **_limits(flag)),
        )
        if flag.hidden_key:
            sections[section][flag.hidden_key.partition(".")[2]] = (bool | None, None)
    models: dict[str, Any] = {
        section: (create_model(section, __base__=_Strict, **fields) | None, None)
        for section, fields in sections.items()
    }
    controller: Any = Literal[CONTROLLERS]
    return create_model("config", __base__=_Strict, controller=(controller | None, None), **models)


_BARE_OFF = BeforeValidator(lambda word: "off" if word is False else word)
"""YAML 1.1 reads a bare ``off`` as false."""


def _type_of(flag: Setting) -> Any:
    if flag.words:
        return Annotated[Literal[flag.choices], _BARE_OFF]
    return int | str if flag.kind is tuple else flag.flag_kind


def _limits(flag: Setting) -> dict[str, Any]:
    if flag.flag_kind not in (int, float):
        return {}
    minimum, maximum = flag.limits
    return {"ge": minimum, "le": maximum if maximum < inf else None}


# -- complaints


def _complaints(error: ValidationError, lines: Lines, path: str) -> list[str]:
    """One line per fault, each with its place."""
    found: dict[tuple[str, ...], str] = {}
    for fault in error.errors():
        key = tuple(str(part) for part in fault["loc"][:2])
        place = _place(key, lines, path)
        if fault["type"] in ("extra_forbidden", "invalid_key"):
            found[key] = f"{place}: unknown key {'.'.join(key)}{_suggestion(key)}"
        else:
            value = fault["input"]
            found[key] = f"{place}: {'.'.join(key)} is {value!r:.60}, but must be {_expected(key)}"
    return list(found.values())


def _expected(key: tuple[str, ...]) -> str:
    if key == ("controller",):
        return f"one of {', '.join(CONTROLLERS)}"
    name = ".".join(key)
    for flag in FLAGS:
        if name == flag.hidden_key:
            return "true or false"
        if name == flag.key:
            return _expected_of(flag)
    return "a section with keys of its own"


def _expected_of(flag: Setting) -> str:
    if flag.words:
        return f"one of {', '.join(flag.choices)}"
    if flag.flag_kind is bool:
        return "true or false"
    if flag.flag_kind is str:
        return "text"
    noun = "an integer" if flag.flag_kind is int else "a number (with a dot, such as 0.5)"
    return f"{noun}, {bounds_of(flag)}"


def _suggestion(key: tuple[str, ...]) -> str:
    """The key of the same section that looks most like it, or a section that has such a key."""
    known = ["controller", *(flag.key for flag in FLAGS)]
    sections = {name.partition(".")[0] for name in known}
    if len(key) == 1:
        similar = difflib.get_close_matches(key[0], sections, n=1)
        owner = next((name for name in known if name.partition(".")[2] == key[0]), "")
        return f"; did you mean {owner or similar[0]}?" if owner or similar else _known(sections)
    inside = [name for name in known if name.startswith(f"{key[0]}.")]
    elsewhere = [name for name in known if name.partition(".")[2] == key[1]]
    similar = difflib.get_close_matches(".".join(key), inside, n=1, cutoff=0.75) or elsewhere
    return f"; did you mean {similar[0]}?" if similar else _known(inside)


def _known(names: set[str] | list[str]) -> str:
    return f"; there are {', '.join(sorted(names))}"


def _place(key: tuple[str, ...], lines: Lines, path: str) -> str:
    return f"{path}:{lines[key]}" if key in lines else path


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
                f"{path}:{line}: {'.'.join(key)} stands twice, first in line {lines[key]}"
            )
        lines[key] = line
        _collect_lines(value_node, key, lines, path)
