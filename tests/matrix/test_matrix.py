"""The table of the matrix is right, and the documents say what its cells have shown."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from matrix import RECORD, keep, read, write
from matrix_cells import ROOT, Cell, Matrix, TableError, load, load_file
from matrix_document import lines_of, tables
from matrix_environment import Environment
from matrix_result import Outcome, Result, counted

from horovod._settings.document import update

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text()

SMALL = """
suites: {a: {arguments: [tests/a]}}
cells:
- {name: one, title: A, suites: [a], shows: [a], requirements: [a==1]}
- {name: two, title: A, suites: [a], shows: [a], requirements: [a==2]}
- {name: big, title: A, suites: [a], shows: [a], requirements: [a==3], by_itself: large}
- {name: there, title: A, suites: [a], shows: [a], environment: there}
- {name: three, title: A, suites: [a], shows: [a], requirements: [a==4]}
"""


@pytest.fixture(name="matrix")
def _matrix() -> Matrix:
    return load_file()


def names_of(turns: list[list[Cell]]) -> list[list[str]]:
    return [[cell.name for cell in turn] for turn in turns]


def test_the_whole_is_seen_in_turns_within_the_budget() -> None:
    small = load(SMALL)
    costs = {"one": 100.0, "two": 70.0, "three": 500.0}
    assert names_of(small.turns(costs, 180.0)) == [["one", "two"], ["three"]]
    # What has never passed, or has no pinned versions, cannot fail a change.
    assert names_of(small.turns({"two": 70.0}, 180.0)) == [["two"]]
    fresh = load(SMALL.replace("name: two,", "name: two, fresh: true,"))
    assert names_of(fresh.turns(costs, 180.0)) == [["one"], ["three"]]


def test_a_usual_run_leaves_out_what_runs_by_itself() -> None:
    assert [cell.name for cell in load(SMALL).usual()] == ["one", "two", "there", "three"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name: two", "name: one", "two cells one"),
        ("suites: [a], shows: [a], environment", "suites: [b], shows: [a], environment", "suite b"),
        ("shows: [a], environment: there", "shows: [a]", "neither requirements"),
        ("environment: there", "place: there", "unknown key place"),
        ("title: A, suites: [a], shows: [a], environment", "suites: [a], environment", "title"),
    ],
)
def test_a_wrong_table_is_refused(before: str, after: str, message: str) -> None:
    assert before in SMALL
    with pytest.raises(TableError, match=message):
        load(SMALL.replace(before, after))


def test_a_cell_that_is_not_there_is_refused(matrix: Matrix) -> None:
    with pytest.raises(TableError, match=r"no cell torch-1; there are torch-2\.1"):
        matrix.named(["torch-1"])


def test_files_that_the_table_names_exist(matrix: Matrix) -> None:
    named = [word for suite in matrix.suites.values() for word in suite.arguments]
    named += [word for cell in matrix.cells.values() for word in cell.requirements]
    paths = {path for word in named for path in re.findall(r"(?:tests|requirements)/\S+", word)}
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_environments_of_others_have_a_target(matrix: Matrix) -> None:
    names = {cell.environment for cell in matrix.cells.values()} - {"", "."}
    made = " ".join(line for line in MAKEFILE.splitlines() if re.search(r"stamp|^TORCHES", line))
    assert not [name for name in names if not re.search(rf"\b{name}\b", made)]


def test_old_versions_get_the_same_tests_as_in_ci(matrix: Matrix) -> None:
    for variable, suite in (("JAX", "jax"), ("RAY", "ray"), ("SPARK", "spark")):
        text = re.search(rf"^ON_OLD_{variable} = ((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)
        assert text is not None
        words = re.findall(r"'[^']*'|[^\s\\]+", text[1])
        assert [word.strip("'") for word in words] == [*matrix.suites[suite].arguments]


def test_the_document_says_what_the_cells_have_shown() -> None:
    text = (ROOT / "docs/compatibility.md").read_text()
    assert update(text, tables()) == text, "run make docs"


def test_results_are_of_cells_of_the_table(matrix: Matrix) -> None:
    assert set(read(RECORD)) <= set(matrix.cells)


def test_no_recorded_result_is_an_unexplained_failure() -> None:
    assert not [each.name for each in read(RECORD).values() if each.outcome == Outcome.FAILED]


def test_a_row_tells_why_a_cell_was_not_run_and_why_it_fails() -> None:
    small = load(SMALL)
    results = {
        "one": Result("one", Outcome.NOT_RUN, "there is no Python 3.9 here"),
        "two": Result(
            "two", Outcome.KNOWN, "a is broken", "2026-01-02", "3.11.7", {"a": "2"}, {"failed": 1}
        ),
    }
    lines = lines_of(results, small.cells)
    assert lines[2] == "| A (`one`) | a==1 | | | not run: there is no Python 3.9 here | |"
    assert "1 failed | **fails, for a known reason**, 2026-01-02: a is broken |" in lines[3]


def test_a_record_keeps_the_order_of_the_table_and_other_cells(tmp_path: Path) -> None:
    small, record = load(SMALL), tmp_path / "record.json"
    write(record, {"two": Result("two"), "one": Result("one"), "gone": Result("gone")}, small)
    assert [*read(record)] == ["one", "two"]
    keep(record, Result("there", Outcome.PASSED), small)
    assert {name: each.outcome for name, each in read(record).items()} == {
        "one": Outcome.NOT_RUN, "two": Outcome.NOT_RUN, "there": Outcome.PASSED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("===== 29 passed, 1 skipped in 12.34s =====", {"passed": 29, "skipped": 1}),
        ("2 failed, 3 passed, 8 deselected, 4 warnings in 71.02s (0:01:11)",
         {"failed": 2, "passed": 3}),
        ("no tests ran in 0.01s", {}),
        ("killed", {}),
    ],
)  # fmt: skip
def test_the_closing_line_is_counted(line: str, found: dict[str, int]) -> None:
    assert counted(f"before\n{line}\n") == found


def test_what_is_not_here_is_said_and_not_run(matrix: Matrix, tmp_path: Path) -> None:
    def why_not(name: str, **changes: Any) -> str:
        cell = replace(matrix.cells[name], **changes)
        suites = [matrix.suites[each] for each in cell.suites]
        return Environment(cell, suites, tmp_path).why_not()

    limit = "" if sys.version_info < (3, 12) else 'its versions need python_version < "3.12"'
    assert why_not("tensorflow-2.15") == limit
    assert "no .venv/nowhere" in why_not("ray", environment="nowhere")
    assert why_not("python-3.10", python="3.9") == "there is no Python 3.9 here"
