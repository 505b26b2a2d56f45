"""``horovodrun doctor``: which scripts are read, and what is printed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from horovod.errors import UsageError
from horovod.runner.doctor.examination import (
    examine_environment,
    examine_libraries,
    examine_script,
    report,
)
from horovod.runner.doctor.rules import Level, Remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HELP = """\
usage: horovodrun doctor SCRIPT_OR_FOLDER ...
for example: horovodrun doctor train.py, or horovodrun doctor .

Reads Python scripts written for an earlier Horovod, without running them, and lists what is gone or
means something else: in Horovod, in its HOROVOD_... settings, and in TensorFlow 2 and Keras 3. In a
folder it reads all files *.py, also in folders below it, but not in virtual environments.
The exit code is 1 if something will fail."""

_SKIPPED = ("__pycache__", "node_modules", "site-packages")


def examine(words: Sequence[str], environ: Mapping[str, str], stdout: TextIO) -> int:
    """Runs the doctor.

    Args:
        words: what follows ``horovodrun doctor``.
        environ: the variables that scripts will find.
        stdout: takes the remarks.

    Returns:
        The exit code: 1 if something will fail.

    Raises:
        UsageError: there are no scripts, or one cannot be read.
    """
    if "-h" in words or "--help" in words:
        print(HELP, file=stdout, flush=True)
        return 0
    if not words or words[0].startswith("-"):
        raise UsageError("doctor: name the scripts to examine, as in 'horovodrun doctor train.py'")
    remarks = [*examine_environment(environ), *examine_libraries(environ)]
    for word in words:
        if os.path.isdir(word):
            remarks += _examine_folder(Path(word), environ)
        else:
            remarks += examine_script(_read(word), word, environ)
    text, code = report(remarks)
    print(text, file=stdout, flush=True)
    return code


def _examine_folder(folder: Path, environ: Mapping[str, str]) -> list[Remark]:
    """A file that is no Python of today, such as a template, is not the user's question here."""
    paths = list(_scripts_in(folder))
    if not paths:
        raise UsageError(f"doctor: there are no Python files in {folder}")
    remarks = []
    for path in paths:
        try:
            remarks += examine_script(_read(str(path)), str(path), environ)
        except UsageError as error:
            remarks.append(Remark(str(path), Level.HINT, f"was left out: {error}"))
    return remarks


def _scripts_in(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if _is_of_user(Path(parent, each)))
        yield from (Path(parent, file) for file in sorted(files) if file.endswith(".py"))


def _is_of_user(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED
    return not hidden and not (folder / "pyvenv.cfg").exists()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the script {path}: {error}") from None
