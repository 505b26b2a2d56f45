"""Write the table of docs/launching.md from the options.

``python -m horovod.runner.cli.document FILE`` brings the file up to date.
"""

from __future__ import annotations

import argparse
import sys

from horovod._settings.document import code, run, table
from horovod.runner.cli.options import OPTIONS, Option
from horovod.runner.starting.modes import Mode

_COLUMNS = ("Option", "For", "Meaning")


def tables_of_options() -> dict[str, list[str]]:
    """Return the lines of the table of options, by its name."""
    rows = [_cells(row) for row in OPTIONS if row.help is not argparse.SUPPRESS]
    return {"options": table(_COLUMNS, rows)}


def _cells(row: Option) -> tuple[str, str, str]:
    metavar = row.more.get("metavar") or "|".join(row.more.get("choices", ()))
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    names = ", ".join(code(f"{name} {value}".strip().replace("|", "\\|")) for name in row.names)
    modes = [mode for mode in Mode if mode in row.modes]
    fits = "all" if len(modes) == len(Mode) else ", ".join(_shown(mode) for mode in modes)
    return names, fits, row.help.replace("<", "&lt;")


def _shown(mode: Mode) -> str:
    name = mode.name or ""
    return name if mode is Mode.MPI else name.lower().replace("_", " ")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], "horovod.runner.cli.document", tables_of_options()))
