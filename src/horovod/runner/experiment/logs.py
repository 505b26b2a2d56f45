"""``horovodrun experiment logs``: what the ranks of an experiment have written, and write."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.new_lines import NewLines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TextIO

_ID = re.compile(r"(\d+)(?:\.(\d+))?")
_INTERVAL_S = 0.5


def logs(root: Path, words: Sequence[str], stdout: TextIO) -> int:
    """Prints what the ranks of an experiment, or of one of its runs, have written.

    With ``--follow`` it goes on until the experiment has ended, or until Ctrl-C.

    Args:
        root: the folder of all experiments of the project.
        words: options, and maybe the number of the experiment; otherwise it is the last one.
        stdout: where the lines go, each behind the run, line, rank and stream that it is of.

    Raises:
        UsageError: there is no such experiment or run.
    """
    options = _parser().parse_args(list(words))
    number, index = _number_of(root, options.id)
    known = record.read(root / str(number))
    if index is not None and not 1 <= index <= len(known.runs):
        raise UsageError(f"experiment {number} has the runs 1 to {len(known.runs)}, not {index}")
    indices = [index] if index is not None else range(1, len(known.runs) + 1)
    # A run that is alone needs no name.
    names = {} if len(indices) == 1 else {each: f"run {known.name_of(each)} " for each in indices}
    runs = [_RunLogs(names.get(each, ""), known.folder_of(each)) for each in indices]
    with suppress(KeyboardInterrupt):
        while True:
            goes_on = options.follow and known.may_run()
            for run in runs:
                run.copy(stdout, is_last=not goes_on)
            stdout.flush()
            if not goes_on:
                break
            time.sleep(_INTERVAL_S)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("horovodrun experiment logs", allow_abbrev=False)
    add = parser.add_argument
    add("id", nargs="?", help="number of the experiment, or ID.RUN; the last one if it is left out")
    add("--follow", action="store_true", help="print what ranks write until the experiment ends")
    return parser


def _number_of(root: Path, name: str | None) -> tuple[int, int | None]:
    if name is None:
        return record.last_in(root), None
    if (parts := _ID.fullmatch(name)) is None:
        raise UsageError(f"horovodrun experiment logs {name}: expected ID or ID.RUN, such as 3.1")
    return int(parts[1]), None if parts[2] is None else int(parts[2])


class _RunLogs:
    """The files that the ranks of one run write.

    Args:
        name: what stands before each line; empty if nothing does.
        folder: of the run.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._files: dict[Path, NewLines] = {}

    def copy(self, stdout: TextIO, *, is_last: bool) -> None:
        """Prints what is new."""
        for path in sorted(self._folder.glob(f"{record.LOGS}/*/rank.*/*")):
            where = f"{self._name}{path.parents[1].name} {path.parent.name} {path.name}"
            lines = self._files.setdefault(path, NewLines(path))
            for line in lines.read(is_last=is_last):
                stdout.write(f"{where}: {line}\n")
