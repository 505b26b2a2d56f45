"""A notebook as the caller of ``horovod.run``: which code is that of which cell."""

from __future__ import annotations

import re
import sys
from typing import Any

_FILE = re.compile(r'File "([^"\n]+)", line')


def _shell() -> Any:
    """Return IPython's shell if this process is the kernel of a notebook; None if not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return _shell() is not None


def name_cells(text: str) -> str:
    """Return a traceback that names cells as the notebook does, not files that do not exist.

    Args:
        text: of a traceback, whose lines may name code of this notebook.
    """
    naming = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    if naming is None:  # no notebook, or another IPython
        return text

    def name(found: re.Match[str]) -> str:
        named = naming(found[1])
        return found[0] if named is None else f"{' '.join(named)}, line"

    return _FILE.sub(name, text)
