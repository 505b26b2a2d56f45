"""``horovodrun report-issue``: the command line, and the file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from horovod._base import files
from horovod.errors import StartError, UsageError
from horovod.runner.issue.contents import MOST_TAIL_BYTES, report
from horovod.runner.output.kept_reports import kept_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELP = """\
usage: horovodrun report-issue [-o FILE] [--force] [LOG ...]
for example: horovodrun report-issue, or horovodrun report-issue -o report.md output/rank.0/stderr

Writes one file for a report of a fault: versions, settings, cores and network of this machine, and
what horovodrun said at the end of the last jobs that failed (~/.horovod/reports). LOG adds the
end of a file, such as the output of a rank. Secrets, values of other variables, and names of hosts,
users and homes are replaced. Read the file before you send it. Nothing is sent.

  -o FILE   the file to write (default: horovod-report.md)
  --force   replace FILE if it exists"""

_DEFAULT = "horovod-report.md"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"report-issue: {message}; see 'horovodrun report-issue --help'")


def write_report(words: Sequence[str], environ: Mapping[str, str], stdout: TextIO | None) -> int:
    """Write the report.

    Args:
        words: what follows ``horovodrun report-issue``.
        environ: the variables of this process.
        stdout: takes one line on what was written; the file is written without it, too.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: a word is unknown, the file exists, or a file that is to be added is not there.
        StartError: the file cannot be written.
    """
    parser = _Parser("horovodrun report-issue", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-o", "--output", default=_DEFAULT)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("logs", nargs="*")
    chosen = parser.parse_args(list(words))
    if chosen.help:
        _print(stdout, HELP)
        return 0
    if chosen.output in ("", "-"):
        raise UsageError("report-issue: -o needs the name of a file, which only you can read")
    path = Path(chosen.output)
    if not chosen.force and os.path.lexists(path):
        raise _exists(path)
    text = report(environ, kept_reports(), [(log, _end_of(log)) for log in chosen.logs])
    try:
        with files.writing_whole(path, 0o600, replaces=chosen.force, syncs=True) as stream:
            stream.write(text.encode(errors="replace"))
    except FileExistsError:  # since it was looked for
        raise _exists(path) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartError(f"report-issue: cannot write {path}: {reason}") from None
    _print(
        stdout, f"wrote {path}; read it before you send it: it may have names that only you know"
    )
    return 0


def _end_of(log: str) -> str:
    try:
        with open(log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MOST_TAIL_BYTES))
            return stream.read(MOST_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"report-issue: cannot read {log}: {error.strerror}") from None


def _exists(path: Path) -> UsageError:
    return UsageError(
        f"report-issue: {path} exists: name another file with -o, or replace it with --force"
    )


def _print(stdout: TextIO | None, line: str) -> None:
    """Print a line; a console that is closed or full must not cost the report."""
    if stdout is None:
        return
    try:
        print(line, file=stdout, flush=True)
    except OSError:
        # Imported only here: it brings all that starts jobs.
        from horovod.runner.starting.run_job import drop_stdout

        drop_stdout()
