"""Lets a Python that this one starts import the same Horovod, and otherwise its own libraries."""

from __future__ import annotations

import os
import site
import sys
from functools import lru_cache
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
        The variables, with PYTHONPATH extended unless Python finds this Horovod anyway.
    """
    root = str(Path(horovod.__file__).resolve().parent.parent)
    if root in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(environ)
    given = environ.get("PYTHONPATH", "")
    entries = [entry for entry in given.split(os.pathsep) if entry]
    if root in [os.path.abspath(entry) for entry in entries] or _finds_horovod(
        tuple(sorted(environ.items()))
    ):
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join([*entries, root])}


@lru_cache(maxsize=1)  # a launcher asks for each host
def _finds_horovod(variables: tuple[tuple[str, str], ...]) -> bool:
    """Whether a new Python finds this Horovod, as by a .pth file that names another environment.

    That environment must not stand in PYTHONPATH: its other libraries would then come before those
    of the environment that runs.
    """
    import subprocess  # seldom needed; ranks load this module, too

    find = "from importlib.util import find_spec as f; s = f('horovod'); print(s and s.origin)"
    try:
        found = subprocess.run(
            [sys.executable, "-c", find],
            env=dict(variables),
            cwd="/",  # which it would look into first
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return os.path.realpath(found.stdout.strip()) == os.path.realpath(horovod.__file__)
