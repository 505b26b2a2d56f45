"""Write the table of docs/compatibility.md from the results in docs/data/matrix.json.

    python tests/matrix/matrix_document.py docs/compatibility.md
    python tests/matrix/matrix_document.py --check docs/compatibility.md

``python tests/matrix/matrix.py --record docs/data/matrix.json`` replaces the results.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from matrix import RECORD, read
from matrix_cells import Cell, load_file
from matrix_result import Outcome, Result

from horovod._settings.document import run, table

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("", "Versions", "Python", "Tests", "Result", "Cost")


def lines_of(results: Mapping[str, Result], cells: Mapping[str, Cell]) -> list[str]:
    """Return the table of all cells, also of those that have no result yet."""
    return table(COLUMNS, (_row(cell, results.get(name)) for name, cell in cells.items()))


def _row(cell: Cell, result: Result | None) -> tuple[str, ...]:
    first = f"{cell.title} (`{cell.name}`)"
    if result is None or (result.outcome == Outcome.NOT_RUN and not result.versions):
        reason = "" if result is None else f": {result.reason}"
        return first, ", ".join(cell.requirements), cell.python, "", f"not run{reason}", ""
    tests = ", ".join(f"{count} {kind}" for kind, count in result.tests.items())
    ended = result.outcome if result.outcome == Outcome.PASSED else f"**{result.outcome}**"
    reason = f": {result.reason}" if result.reason else ""
    return (
        first,
        ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        result.python,
        tests,
        f"{ended}, {result.date}{reason}",
        f"{result.processor_s} s" + (f", {result.megabytes:,} MB" if result.megabytes else ""),
    )


def tables() -> dict[str, list[str]]:
    """Return the lines between the markers of the table."""
    return {"matrix": lines_of(read(RECORD), load_file().cells)}


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], "tests/matrix/matrix_document.py", tables()))
