"""Write the tables of docs/settings.md from the table of settings.

``python -m horovod._settings.document FILE`` brings the file up to date; with ``--check`` in front
of the name it only checks that. A table begins behind ``<!-- begin NAME -->`` and ends before
``<!-- end NAME -->``.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._settings import TABLE
from horovod._settings.honored import MIB
from horovod._settings.setting import Setting, Status
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_LINE_LENGTH = 120


def update(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Return a document with its tables brought up to date.

    Args:
        text: a document with the markers of every table.
        tables: the lines of each, by name.

    Raises:
        UsageError: the markers of a table are missing.
    """
    for name, lines in tables.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise UsageError(f"the document has no lines {begin.strip()!r} and {end!r}")
        text = before + begin + "".join(f"{line}\n" for line in lines) + end + after
    return text


def run(arguments: Sequence[str], module: str, tables: Mapping[str, Sequence[str]]) -> int:
    """Update or check a document; return the exit code.

    Args:
        arguments: the file, perhaps with ``--check`` in front.
        module: that was started, for the usage.
        tables: the lines of each, by name.
    """
    check = list(arguments[:1]) == ["--check"]
    names = arguments[1:] if check else arguments
    if len(names) != 1:
        print(f"usage: python -m {module} [--check] FILE", file=sys.stderr)
        return 2
    path = Path(names[0])
    old = path.read_text()
    new = update(old, tables)
    if check and new != old:
        print(f"{path} is not up to date: run make docs", file=sys.stderr)
        return 1
    if new != old:
        path.write_text(new)
    return 0


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [_row(columns), _row(["---"] * len(columns), ""), *map(_row, rows)]


def code(text: str) -> str:
    """Return a text in the font of code."""
    return f"`{text}`"


def _has(status: Status) -> Callable[[Setting], bool]:
    return lambda setting: setting.status is status


def _default(setting: Setting) -> str:
    if setting.shown or setting.default is None:
        return setting.shown
    if setting.kind is int and setting.default and setting.default % MIB == 0:
        return f"{setting.default // MIB} MiB"
    return setting.default if setting.kind is str else f"{setting.default:g}"


_FLAG = "Flag of `horovodrun`"
_COLUMNS: dict[str, Callable[[Setting], str]] = {
    "Variable": lambda setting: code(setting.name),
    _FLAG: lambda setting: ", ".join(map(code, setting.flags)),
    "Default": _default,
    "Meaning": lambda setting: setting.meaning,
    "Use instead": lambda setting: code(setting.replacement),
    "Understood": lambda setting: ", ".join(map(code, setting.words)),
    "Instead of any other word": lambda setting: setting.refusal,
    "Why": lambda setting: setting.meaning,
}
_TABLES: dict[str, tuple[Callable[[Setting], object], tuple[str, ...]]] = {
    "honored": (_has(Status.HONORED), ("Variable", _FLAG, "Default", "Meaning")),
    "set by the launcher": (_has(Status.PLACE), ("Variable", "Meaning")),
    "deprecated": (_has(Status.DEPRECATED), ("Variable", _FLAG, "Use instead", "Meaning")),
    "refused": (
        lambda setting: setting.refusal,
        ("Variable", "Understood", "Instead of any other word"),
    ),
    "without effect": (_has(Status.WITHOUT_EFFECT), ("Variable", _FLAG, "Why")),
    "build": (_has(Status.BUILD), ()),
}
"""By name: which settings a table has, and its columns; without columns it is a list of names."""


def tables_of_settings() -> dict[str, list[str]]:
    """Return the lines of all tables of docs/settings.md."""
    return {name: _lines_of(*row) for name, row in _TABLES.items()}


def _lines_of(belongs: Callable[[Setting], object], columns: Sequence[str]) -> list[str]:
    settings = [setting for setting in TABLE.values() if belongs(setting)]
    if not columns:
        names = " ".join(code(setting.name) for setting in settings)
        return textwrap.wrap(names, _LINE_LENGTH, break_on_hyphens=False)
    return table(columns, ([_COLUMNS[name](setting) for name in columns] for setting in settings))


def _row(cells: Sequence[str], space: str = " ") -> str:
    return "|" + "|".join(f"{space}{cell}{space}" if cell else " " for cell in cells) + "|"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], "horovod._settings.document", tables_of_settings()))
