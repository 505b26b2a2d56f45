"""Find faults and doubtful places in the lines of a job file. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from horovod.runner.experiment.grid import variable_of
from horovod.runner.experiment.placeholders import Place, malformed, placeholders_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horovod.runner.experiment.grid import Line, Run
    from horovod.runner.experiment.yaml_tree import Document, Path, Problem

_INSTALLER = re.compile(r"\b(?:pip3?|conda|apt|apt-get|yum|npm)\s+install\b")
_LOST = re.compile(r"^(?:cd|export|source|\.)\s+[^;&|]+$")
# What a shell made of a value that was not quoted, as of the name of a folder.
_EXPANDED = re.compile(r"~|\$[A-Za-z_{]")
_WHERE = {
    Place.IN_WORD: "inside a word",
    Place.IN_DOUBLE_QUOTES: "inside quotes",
    Place.IN_SINGLE_QUOTES: "inside quotes",
    Place.IN_TEXT: "inside a text",
    Place.IN_QUOTED_TEXT: "inside a text",
}


def wrong_placeholders(document: Document) -> Iterator[Problem]:
    """Yield placeholders without a parameter, also if the file has other faults."""
    train = document.data.get("train") if isinstance(document.data, dict) else None
    if not isinstance(train, dict):
        return
    parameters = train.get("parameters")
    known = sorted(map(str, parameters)) if isinstance(parameters, dict) else []
    for path, line in _texts(train.get("run"), ("train", "run")):
        for name in sorted({each.name for each in placeholders_in(line)} - set(known)):
            has = f"parameters has {', '.join(known)}" if known else "there are no parameters"
            yield document.problem(path, f"run uses {{{{{name}}}}}, but {has}")
        for text in malformed(line, known):
            what = "is no placeholder: write the name of a parameter alone, as in {{name}}"
            yield document.problem(path, f"{text} {what}")
    for key in ("install", "image", "env"):
        for path, text in _texts(train.get(key), ("train", key)):
            if found := sorted({each.name for each in placeholders_in(text)} & set(known)):
                what = "has no value here: only the lines of run have parameters"
                yield document.problem(path, f"{{{{{found[0]}}}}} {what}")


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the texts in some part of a file; what is inside of a line counts as the line."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, each in enumerate(value):
            text = each.get("cmd") if isinstance(each, dict) else each
            yield from _texts(text, (*path, index)) if isinstance(text, str) else ()
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, (*path, key))


def doubtful_lines(lines: Sequence[Line], num_ranks: int) -> Iterator[tuple[Path, str]]:
    """Yield lines that have no effect or disturb each other."""
    for index, line in enumerate(lines):
        path: Path = ("train", "run", index)
        if _LOST.match(line.text):
            what = "has no effect on the lines after it: each line has its own shell"
            yield path, f"{line.text!r} {what}"
        if _INSTALLER.search(line.text) and line.on == "all" and num_ranks > 1:
            yield path, "every process runs this, even several at once on one host"


def unused(parameters: Sequence[str], lines: Sequence[Line]) -> Iterator[str]:
    """Yield the parameters that no line uses."""
    used = {each.name for line in lines for each in placeholders_in(line.text)}
    for name in sorted(set(parameters) - used):
        if not any(variable_of(name) in line.text for line in lines):
            yield name


def changed_values(lines: Sequence[Line], runs: Sequence[Run]) -> Iterator[tuple[Path, str]]:
    """Yield where a program gets another value than the user may expect, for each placeholder."""
    values: Mapping[str, Sequence[str]] = {
        name: list(dict.fromkeys(run.parameters[name] for run in runs))
        for name in (runs[0].parameters if runs else ())
    }
    for index, line in enumerate(lines):
        for each in placeholders_in(line.text):
            changed = [value for value in values.get(each.name, ()) if not each.keeps(value)]
            if changed:
                yield (
                    ("train", "run", index),
                    f"the shell changes {changed[0]!r} where {{{{{each.name}}}}} "
                    f'is {_WHERE[each.place]}: write "${variable_of(each.name)}" there',
                )
            expanded = [value for value in values.get(each.name, ()) if _EXPANDED.match(value)]
            if expanded and each.place is Place.ALONE:
                yield (
                    ("train", "run", index),
                    f"{expanded[0]!r} is quoted where {{{{{each.name}}}}} is a word of its own: "
                    "the program gets it as it is written, and the shell expands nothing in it",
                )
