"""docs/coverage.md has a row for every section of the interface, and names tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COVERAGE = ROOT / "docs" / "coverage.md"
COMPATIBILITY = ROOT / "docs" / "compatibility.md"

SECTIONS = [
    *[f"1.{i}" for i in range(1, 11)],
    *[f"2.{i}" for i in range(1, 13)],
    *[f"3.{i}" for i in range(1, 14)],
    *[f"4.{i}" for i in range(1, 7)],
    "5",
    *[f"6.{i}" for i in range(1, 17)],
    *[f"7.{i}" for i in range(1, 12)],
    *[f"L1.{i}" for i in (*range(1, 13), 14, 15, 16)],
    *["L2.1", "L2.2", "L3.2", "L7.3", "L8.4"],
    *[f"E{i}" for i in range(1, 22)],
    *[f"S{i}" for i in (*range(1, 22), 23, 24, 26)],
]


def rows(text: str) -> list[tuple[str, str]]:
    """Return section and references of each row."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [(row[0], row[2]) for row in cells if len(row) == 3 and re.match(r"[LES]?\d", row[0])]


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Return the tests of a file, and of a file of the contract or of MXNet what it lists."""
    text = path.read_text() if path.is_file() else ""
    tree = ast.parse(text)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    listed = re.search(r"^(?:CHECKS|CASES)[^\n]*= \((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    checks = set(re.findall(r"\w+", listed[1])) if listed else set()
    is_test = path.name.startswith("test_")
    stories = {title.replace(" ", "_") for title in re.findall(r'story\(\s+f?"([^":]+)', text)}
    tests = {name for name in names if name in checks or (is_test and "test_" in name[:5])}
    return frozenset(tests | stories)


@functools.cache
def native_titles() -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / "native" / "tests").glob("*.cc"))
    return frozenset(title for text in texts for title in re.findall(r'\bTEST\("([^"]+)"\)', text))


@functools.cache
def differences() -> frozenset[str]:
    anchors = re.findall(r'^\| <a id="([\w-]+)">', COMPATIBILITY.read_text(), re.MULTILINE)
    return frozenset(f"[{anchor}](compatibility.md#{anchor})" for anchor in anchors)


def exists(place: str, name: str) -> bool:
    if place == "differences":
        return name in differences()
    if place == "`native/tests`":
        return name in native_titles()
    words = name.replace(" ", "_")
    return not {words, f"test_{words}"}.isdisjoint(names_in(ROOT / place.strip("`")))


def problems(text: str) -> list[str]:
    """Return what is wrong with the rows of a document."""
    found = []
    for section, references in rows(text):
        start, *parts = re.split(r"(?:^|\. )(`[\w/.]+`|differences): ", references)
        if start or not parts:
            found.append(f"{section}: cannot read {references!r}")
        for place, names in zip(parts[::2], parts[1::2], strict=True):
            missing = [name for name in names.split("; ") if not exists(place, name)]
            found += [f"{section}: {place} has no {name!r}" for name in missing]
    return found


def test_every_section_has_a_row_and_every_test_exists() -> None:
    text = COVERAGE.read_text()
    assert [section for section, _ in rows(text)] == SECTIONS
    assert not (found := problems(text)), "\n".join(found)


def test_every_difference_has_a_section_and_a_reason() -> None:
    unused = {name for name in differences() if name not in COVERAGE.read_text()}
    assert not unused, "no section of docs/coverage.md leads to these rows"
    for line in re.findall(r"^\| <a id=.*$", COMPATIBILITY.read_text(), re.MULTILINE):
        assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


@pytest.mark.parametrize(
    "references",
    [
        "-",
        "`native/tests`: no such title",
        "`tests/layers/test_coverage.py`: no such test",
        "`tests/layers/test_coverage.py`: exists",
        "`tests/contract/collectives.py`: expect",
        "`tests/no_such_file.py`: x",
        "differences: [no-such-row](compatibility.md#no-such-row)",
        "all of it",
    ],
)
def test_a_row_that_covers_nothing_is_noticed(references: str) -> None:
    assert problems(f"| 1.1 | something | {references} |")
