"""Which packages of Horovod may import a framework, or a library that ranks do without.

Usage: ``python tests/layers/foreign_imports.py``. Prints file and line of each other import, also
of those inside of functions, and fails.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parents[2] / "src" / "horovod"

_TENSORFLOW = {"tensorflow", "spark"}
HOMES = {
    "tensorflow": _TENSORFLOW,
    "keras": {"keras", "_keras", "tensorflow", "jax", "torch", "spark"},
    "torch": {"torch", "spark"},
    "jax": {"jax"},
    "optax": {"jax"},
    "mxnet": {"mxnet"},
    "pyspark": {"spark"},
    "ray": {"ray"},
    # A rank loads nothing that reads config files or prints tables.
    "pydantic": {"runner"},
    "yaml": {"runner"},
    "rich": {"runner"},
}
"""By library: the modules and packages directly below ``horovod`` that may import it."""


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return line and top-level package of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name.partition(".")[0]) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


def breaches(source: Path = SOURCE) -> list[str]:
    """Return file, line and library of each import in a place where it may not be."""
    found = []
    for path in sorted(source.rglob("*.py")):
        home = path.relative_to(source).parts[0].removesuffix(".py")
        for line, library in imports_of(ast.parse(path.read_text())):
            if home not in HOMES.get(library, {home}):
                file = path.relative_to(source.parent)
                found.append(f"{file}:{line}: {library} is only for {sorted(HOMES[library])}")
    return found


if __name__ == "__main__":
    for breach in (all_breaches := breaches()):
        print(breach)
    sys.exit(1 if all_breaches else 0)
