"""Write the tables of docs/upgrading.md from the table of what became of Horovod 0.28.

``python -m horovod.runner.doctor.document FILE`` brings the file up to date.
"""

from __future__ import annotations

import sys

from horovod._settings import TABLE
from horovod._settings.document import code, run, table
from horovod._settings.setting import Status
from horovod.runner.doctor.interface_028 import Fate, fates
from horovod.runner.doctor.rules import Level

_TITLES = {
    Level.HONORED: "works as before",
    Level.CHANGED: "means something else",
    Level.DEPRECATED: "works, but is to be replaced",
    Level.IGNORED: "has no effect",
    Level.FAILS: "is gone",
}
_COLUMNS = {"variable": "Variable", "flag": "Flag", "name": "Name"}


def tables_of_fates() -> dict[str, list[str]]:
    """Return the lines of all tables, by their name."""
    return {f"{kind}s of 0.28": _table(kind, title) for kind, title in _COLUMNS.items()}


def _table(kind: str, title: str) -> list[str]:
    rows = [_cells(fate) for fate in fates() if fate.kind == kind]
    return table((title, "In 1.0", "What became of it"), rows)


def _cells(fate: Fate) -> tuple[str, str, str]:
    is_place = fate.kind == "variable" and TABLE[fate.name].status is Status.PLACE
    # Who sets one of these in a script changes something; who reads it does not.
    title = _TITLES[Level.HONORED if is_place else fate.level]
    return code(fate.name), title, fate.text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], "horovod.runner.doctor.document", tables_of_fates()))
