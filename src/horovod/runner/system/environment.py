"""What processes that the launcher starts inherit from it: variables and where modules are."""

from __future__ import annotations

import os
import re
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import horovod

if TYPE_CHECKING:
    from collections.abc import Mapping


# Variables that hold for one machine and one login. On another host the ranks get what is there.
_OWN = re.compile(
    r"BASH_FUNC_.*|OLDPWD|PWD|SHLVL|_|HOSTNAME|HOME|USER|LOGNAME|MAIL|SHELL|TERM|TMPDIR|DISPLAY"
    r"|XAUTHORITY|WAYLAND_DISPLAY|DBUS_.*|XDG_RUNTIME_DIR|XDG_SESSION_.*|SSH_.*"
    r"|.*(?:CUDA|HIP|ROCR|ASCEND)_VISIBLE_DEVICES"
)
# What opens this job, or another one, is handed over in other ways.
_SECRET = re.compile(r"_?HOROVOD_SECRET_(?:KEY|FILE)")


def without_own(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold on any host of a job."""
    return {name: value for name, value in environ.items() if not _OWN.fullmatch(name)}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that open a job, this one or another."""
    return {name: value for name, value in environ.items() if not _SECRET.fullmatch(name)}


def only_own(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold for this machine and this login only."""
    return {name: value for name, value in environ.items() if _OWN.fullmatch(name)}


def with_horovod_on_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Lets a Python that is started with these variables import the same Horovod as this one.

    Needed where ``sys.path`` was changed while the program ran, for example in a notebook.

    Args:
        environ: variables by name.

    Returns:
        The variables, with PYTHONPATH extended unless Horovod is installed where Python looks.
    """
    root = str(Path(horovod.__file__).resolve().parent.parent)
    if root in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(environ)
    given = environ.get("PYTHONPATH", "")
    entries = [entry for entry in given.split(os.pathsep) if entry]
    if root not in [os.path.abspath(entry) for entry in entries]:
        entries.append(root)
    return {**environ, "PYTHONPATH": os.pathsep.join(entries)}


def python_command(module: str) -> list[str]:
    """The command that runs a module of Horovod in this Python.

    Args:
        module: its full name; the working directory is kept out of ``sys.path`` where Python can,
            so that a file of the user does not stand in for a module of the library.
    """
    isolation = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *isolation, "-m", module]
