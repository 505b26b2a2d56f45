"""What processes that the launcher starts inherit from it: variables and where modules are."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import horovod

if TYPE_CHECKING:
    from collections.abc import Mapping


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
