"""Say which packages have newer versions than those of requirements/, and what these would break.

    python tests/matrix/matrix_newest.py          # asks the index, changes nothing
    python tests/matrix/matrix.py newest   # tests the small ones: make test-newest does both

Versions of ``requirements`` are pinned, but users get the newest that the bounds in pyproject.toml
allow. Old versions that are pinned on purpose are not looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matrix_cells import ROOT
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

sys.path.append(str(ROOT / "requirements"))
import install

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Files of old versions, and of packages that no longer change.
OLD = ("oldest", "mxnet", "mpi4jax", "mpich", "libraries", "matrix")
LIMIT_S = 300.0


@dataclass(frozen=True)
class Pin:
    """A version that a file of requirements names."""

    name: str
    version: str
    file: str


def pins_of(file: str, text: str) -> list[Pin]:
    """Return the pins of a file that hold for this Python; other lines have none."""
    pins = []
    for line in text.splitlines():
        try:
            each = Requirement(line.partition(" #")[0])
        except InvalidRequirement:  # -r, comments
            continue
        exact = [part.version for part in each.specifier if part.operator == "=="]
        if exact and (each.marker is None or each.marker.evaluate()):
            pins.append(Pin(canonicalize_name(each.name), exact[0], file))
    return pins


def all_pins() -> list[Pin]:
    """Return the pins of all files that do not want old versions."""
    files = sorted((ROOT / "requirements").glob("*.txt"))
    return [
        pin
        for file in files
        if not any(word in file.stem for word in OLD)
        for pin in pins_of(file.name, file.read_text())
    ]


def newest(names: Iterable[str]) -> dict[str, str]:
    """Ask the index for the newest version of packages, of which it installs nothing.

    Raises:
        RuntimeError: uv cannot do it.
    """
    variables = install.variables_of_uv(install.settings_of_pip())
    if variables is None:
        raise RuntimeError("uv does not know the settings of pip here: see requirements/install.py")
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-deps", "--no-header",
         "--no-annotate", "--python", sys.executable, "-"],
        input="\n".join(sorted(set(names))), env={**variables, **os.environ},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return {pin.name: pin.version for pin in pins_of("the index", done.stdout)}


def lines_of(pins: Iterable[Pin], found: Mapping[str, str]) -> list[str]:
    """Return a line for each pin of which there is another version now."""
    return [
        f"{pin.name}: {pin.version} in requirements/{pin.file}, newest {found[pin.name]}"
        for pin in pins
        if found.get(pin.name, pin.version) != pin.version
    ]


def main() -> int:
    """Print what is new; return 2 if the index cannot be asked."""
    pins = all_pins()
    try:
        found = newest(pin.name for pin in pins)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    lines = lines_of(pins, found)
    print("\n".join(lines or ["all that is pinned is the newest"]))
    print(f"{len(lines)} of {len(pins)} pins have a newer version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
