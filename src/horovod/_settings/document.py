"""Writes the tables of docs/settings.md from the table of settings.

``python -m horovod._settings.document FILE`` brings the file up to date; with ``--check`` in front
of the name it only says whether it is. A table stands between ``<!-- begin NAME -->`` and
``<!-- end NAME -->``.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._settings import TABLE
from horovod._settings.setting import Setting, Status
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LINE_LENGTH = 120


def update(text: str) -> str:
    """The document with its tables written anew.

    Args:
        text: a document with the markers of every table.

    Raises:
        UsageError: the markers of a table are missing.
    """
    for name, table in _TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        pattern = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)
        if not pattern.search(text):
            raise UsageError(f"the document has no lines {begin.strip()!r} and {end!r}")
        lines = table()
        text = pattern.sub(lambda _, lines=lines: "".join(f"{line}\n" for line in lines), text)  # type: ignore[misc]
    return text


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    check = list(arguments[:1]) == ["--check"]
    names = arguments[1:] if check else arguments
    if len(names) != 1:
        print("usage: python -m horovod._settings.document [--check] FILE", file=sys.stderr)
        return 2
    path = Path(names[0])
    old = path.read_text()
    new = update(old)
    if check and new != old:
        print(f"{path} is not up to date: run make docs", file=sys.stderr)
        return 1
    if new != old:
        path.write_text(new)
    return 0


def _honored() -> list[str]:
    return _table(
        ("Variable", "Flag of `horovodrun`", "Default", "Meaning"),
        ((_code(s.name), _flags(s), _default(s), s.meaning) for s in _with(Status.HONORED)),
    )


def _places() -> list[str]:
    return _table(
        ("Variable", "Meaning"), ((_code(s.name), s.meaning) for s in _with(Status.PLACE))
    )


def _deprecated() -> list[str]:
    return _table(
        ("Variable", "Flag of `horovodrun`", "Use instead", "Meaning"),
        (
            (_code(s.name), _flags(s), _code(s.replacement), s.meaning)
            for s in _with(Status.DEPRECATED)
        ),
    )


def _refused() -> list[str]:
    return _table(
        ("Variable", "Understood", "Instead of any other word"),
        (
            (_code(s.name), ", ".join(map(_code, s.words)), s.refusal)
            for s in TABLE.values()
            if s.refusal
        ),
    )


def _without_effect() -> list[str]:
    return _table(
        ("Variable", "Flag of `horovodrun`", "Why"),
        ((_code(s.name), _flags(s), s.meaning) for s in _with(Status.WITHOUT_EFFECT)),
    )


def _build() -> list[str]:
    names = " ".join(_code(setting.name) for setting in _with(Status.BUILD))
    return textwrap.wrap(names, _LINE_LENGTH, break_on_hyphens=False)


_TABLES: dict[str, Callable[[], list[str]]] = {
    "honored": _honored,
    "set by the launcher": _places,
    "deprecated": _deprecated,
    "refused": _refused,
    "without effect": _without_effect,
    "build": _build,
}


def _with(status: Status) -> list[Setting]:
    return [setting for setting in TABLE.values() if setting.status is status]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(heads), _row(["---"] * len(heads), ""), *(_row(row) for row in rows)]


def _row(cells: Sequence[str], space: str = " ") -> str:
    return "|" + "|".join(f"{space}{cell}{space}" if cell else " " for cell in cells) + "|"


def _code(text: str) -> str:
    return f"`{text}`"


def _flags(setting: Setting) -> str:
    return ", ".join(map(_code, setting.flags))


def _default(setting: Setting) -> str:
    if setting.shown:
        return setting.shown
    if setting.default is None:
        return ""
    if isinstance(setting.default, bool):
        return str(int(setting.default))
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
