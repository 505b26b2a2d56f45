"""Prints what clang-tidy reads: each file of ours that CMake would compile, or bundle of them.

Usage: ``python tests/layers/translation_units.py BUILD_FOLDER``. Every file of ``native`` and of
the fakes is in one of them, or this fails.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("native", "tests/fakes/gpu")
# Fuzzers are compiled by clang alone, with their own script.
ELSEWHERE = ("native/fuzz/",)


def units_of(build: Path) -> dict[Path, list[Path]]:
    """By translation unit: the files of ours that it compiles."""
    commands = json.loads((build / "compile_commands.json").read_text())
    found: dict[Path, list[Path]] = {}
    for unit in sorted({Path(command["file"]) for command in commands}):
        files = [unit]
        if unit.name.startswith("unity_"):
            files = [Path(each) for each in re.findall(r'#include "(.*\.cc)"', unit.read_text())]
        if ours := [each for each in files if is_ours(each)]:
            found[unit] = ours
    return found


def is_ours(path: Path) -> bool:
    """Whether a file is a source of this repository."""
    return any(path.is_relative_to(ROOT / folder) for folder in SOURCES)


def overlooked(files: set[Path]) -> list[str]:
    """Sources that are in no translation unit."""
    everything = {path for folder in SOURCES for path in (ROOT / folder).rglob("*.cc")}
    names = sorted(str(path.relative_to(ROOT)) for path in everything - files)
    return [name for name in names if not name.startswith(ELSEWHERE)]


def main() -> int:
    units = units_of(Path(sys.argv[1]))
    missing = overlooked({file for files in units.values() for file in files})
    if missing:
        print(f"no translation unit has {', '.join(missing)}", file=sys.stderr)
        return 1
    # Those that take longest first, for those that read them side by side.
    for unit in sorted(units, key=lambda unit: -len(units[unit])):
        print(unit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
