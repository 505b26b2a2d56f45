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
from horovod.runner.doctor.shell import ENDINGS, examine_shell, is_shell_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HELP = """\
usage: horovodrun doctor SCRIPT_OR_FOLDER ...
for example: horovodrun doctor train.py, or horovodrun doctor .

Reads scripts written for an earlier Horovod, without running them, and lists what is gone or means
something else: in Horovod, in its HOROVOD_... settings, in flags of horovodrun, and in TensorFlow 2
and Keras 3. Scripts are Python, or of a shell (variables and flags). In a folder it reads all files
*.py, *.sh and the like, also in folders below it, but not in virtual environments.
The exit code is 1 if something will fail."""

_SKIPPED = ("__pycache__", "node_modules", "site-packages")


def examine(
    words: Sequence[str],
    environ: Mapping[str, str],
    stdout: TextIO,
    num_words: Mapping[str, int],
) -> int:
    """Runs the doctor.

    Args:
        words: what follows ``horovodrun doctor``.
        environ: the variables that scripts will find.
        stdout: takes the remarks.
        num_words: by option of ``horovodrun``, how many words follow it.

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
            remarks += _examine_folder(Path(word), environ, num_words)
        else:
            remarks += _examine_file(word, environ, num_words)
    text, code = report(remarks)
    print(text, file=stdout, flush=True)
    return code


def _examine_file(
    path: str, environ: Mapping[str, str], num_words: Mapping[str, int]
) -> list[Remark]:
    text = _read(path)
    if is_shell_script(path, text):
        return examine_shell(text, path, num_words)
    return examine_script(text, path, environ)


def _examine_folder(
    folder: Path, environ: Mapping[str, str], num_words: Mapping[str, int]
) -> list[Remark]:
    """A file that is no Python of today, such as a template, is not the user's question here."""
    paths = list(_scripts_in(folder))
    if not paths:
        raise UsageError(f"doctor: there are no Python files and no shell scripts in {folder}")
    remarks = []
    for path in paths:
        try:
            remarks += _examine_file(str(path), environ, num_words)
        except UsageError as error:
            remarks.append(Remark(str(path), Level.HINT, f"was left out: {error}"))
    return remarks


def _scripts_in(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if _is_of_user(Path(parent, each)))
        yield from (
            Path(parent, file) for file in sorted(files) if file.endswith((".py", *ENDINGS))
        )


def _is_of_user(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED
    return not hidden and not (folder / "pyvenv.cfg").exists()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the script {path}: {error}") from None
