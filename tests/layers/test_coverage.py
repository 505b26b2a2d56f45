"""docs/coverage.md names tests and rows that exist, and leaves no statement without one."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from horovod._settings import TABLE
from horovod._settings.setting import Status

ROOT = Path(__file__).resolve().parents[2]
COVERAGE = ROOT / "docs" / "coverage.md"
COMPATIBILITY = ROOT / "docs" / "compatibility.md"

# One reference: `path::name`, `native: title`, or a link to a row of compatibility.md.
REFERENCE = re.compile(
    r"`native: (?P<title>[^`]+)`"
    r"|`(?P<path>tests/[\w/]+\.py)::(?P<name>\w+)`"
    r"|\[difference\]\(compatibility\.md#(?P<row>[\w-]+)\)"
)
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


def rows(text: str) -> list[tuple[str, str, str]]:
    """Section, statement and references of each row; titles may hold a bar, cells may not."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if re.match(r"\| [LES]?\d", line):
            assert len(cells) == 3, line
            found.append((cells[0], cells[1], cells[2]))
    return found


@functools.cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@functools.cache
def checks_in(path: Path) -> frozenset[str]:
    """The functions that a file of the contract lists in CHECKS, or one of MXNet's in CASES."""
    text = path.read_text() if path.exists() else ""
    listed = re.search(r"^(?:CHECKS|CASES)[^\n]*= \((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r"\w+", listed[1])) if listed else frozenset()


@functools.cache
def native_titles() -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / "native" / "tests").glob("*.cc"))
    return frozenset(title for text in texts for title in re.findall(r'\bTEST\("([^"]+)"\)', text))


@functools.cache
def anchors() -> frozenset[str]:
    return frozenset(re.findall(r'^\| <a id="([\w-]+)">', COMPATIBILITY.read_text(), re.MULTILINE))


def exists(reference: re.Match[str]) -> bool:
    if reference["title"]:
        return reference["title"] in native_titles()
    if reference["row"]:
        return reference["row"] in anchors()
    path, name = ROOT / reference["path"], reference["name"]
    if path.parent.name in ("contract", "mxnet") and not name.startswith("test_"):
        return name in functions_in(path) and name in checks_in(path)
    return path.name.startswith("test_") and name.startswith("test_") and name in functions_in(path)


def problems(text: str) -> list[str]:
    """What is wrong with the rows of a document."""
    found = []
    for section, statement, references in rows(text):
        matches = list(REFERENCE.finditer(references))
        rest = REFERENCE.sub("", references).replace(",", "").strip()
        if rest or not matches:
            found.append(f"{section} {statement}: cannot read {rest or 'an empty cell'!r}")
        found += [
            f"{section} {statement}: {match[0]} does not exist"
            for match in matches
            if not exists(match)
        ]
    return found


def test_every_statement_is_covered_or_a_difference() -> None:
    assert not (found := problems(COVERAGE.read_text())), "\n".join(found)


def test_every_section_has_its_rows() -> None:
    assert list(dict.fromkeys(section for section, _, _ in rows(COVERAGE.read_text()))) == SECTIONS


def test_no_statement_stands_twice() -> None:
    statements = [(section, statement) for section, statement, _ in rows(COVERAGE.read_text())]
    assert len(set(statements)) == len(statements)


def test_every_difference_has_a_reason() -> None:
    text = COMPATIBILITY.read_text()
    unused = anchors() - set(re.findall(r"compatibility\.md#([\w-]+)", COVERAGE.read_text()))
    assert not unused, "no statement of docs/coverage.md leads to these rows"
    for line in re.findall(r"^\| <a id=.*$", text, re.MULTILINE):
        assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


@pytest.mark.parametrize(
    "references",
    [
        "",
        "`native: no such title`",
        "`tests/layers/test_coverage.py::test_no_such_test`",
        "`tests/layers/test_coverage.py::exists`",
        "`tests/contract/collectives.py::expect`",
        "`tests/no_such_file.py::test_x`",
        "[difference](compatibility.md#no-such-row)",
        "all of it",
    ],
)
def test_a_row_that_covers_nothing_is_noticed(references: str) -> None:
    assert problems(f"| 1.1 | something | {references} |")


def test_only_settings_without_effect_are_called_so() -> None:
    called_so = {
        name
        for _, statement, references in rows(COVERAGE.read_text())
        if "test_what_has_no_effect_is_accepted_in_silence" in references
        for name in re.findall(r"`(HOROVOD_\w+)`", statement)
    }
    without = {name for name, setting in TABLE.items() if setting.status is Status.WITHOUT_EFFECT}
    assert called_so
    assert called_so <= without
