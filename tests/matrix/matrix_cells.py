"""The cells of the matrix, as tests/matrix/cells.yaml lists them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("cells.yaml")
PREFIX = "matrix-"


class TableError(ValueError):
    """The table, or a name of a cell, is wrong."""


@dataclass(frozen=True)
class Suite:
    """Tests of a framework.

    Attributes:
        arguments: of pytest.
        variable: names the environment of the ranks; empty if pytest itself runs in it.
    """

    arguments: tuple[str, ...]
    variable: str = ""


@dataclass(frozen=True)
class Cell:
    """An environment and the tests that run in it; the table explains the attributes."""

    name: str
    title: str
    suites: tuple[str, ...]
    shows: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    python: str = ""
    marker: str = ""
    environment: str = ""
    by_itself: str = ""
    fresh: bool = False
    known: str = ""

    @property
    def folder(self) -> str:
        """The environment, as a path from .venv."""
        return self.environment or PREFIX + self.name


@dataclass(frozen=True)
class Matrix:
    """All cells and suites, by name."""

    suites: dict[str, Suite] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)

    def named(self, names: Sequence[str]) -> list[Cell]:
        """Return some cells.

        Raises:
            TableError: there is no such cell.
        """
        if unknown := [name for name in names if name not in self.cells]:
            known = ", ".join(self.cells)
            raise TableError(f"there is no cell {', '.join(unknown)}; there are {known}")
        return [self.cells[name] for name in names]

    def usual(self) -> list[Cell]:
        """Return the cells that run unless some are named."""
        return [cell for cell in self.cells.values() if not cell.by_itself]

    def turns(self, cost_s: Mapping[str, float], budget_s: float) -> list[list[Cell]]:
        """Divide the cells that .ci/run does not test otherwise among its runs.

        A change must not fail for what it did not change: cells without pinned versions, and those
        that have never passed, are for `make test-matrix`.

        Args:
            cost_s: of the cells that have passed.
            budget_s: that the cells of a run may cost together; a single one may cost more.
        """
        turns: list[list[Cell]] = []
        room_s = 0.0
        for cell in self.usual():
            if cell.environment or cell.fresh or cell.name not in cost_s:
                continue
            cost = cost_s[cell.name]
            if not turns or cost > room_s:
                turns.append([])
                room_s = budget_s
            turns[-1].append(cell)
            room_s -= cost
        return turns


def load(text: str) -> Matrix:
    """Read the table.

    Raises:
        TableError: it has an unknown key or suite, or a name twice, or lacks something.
    """
    table: dict[str, Any] = yaml.safe_load(text)
    suites = {
        name: Suite(tuple(map(str, each["arguments"])), each.get("variable", ""))
        for name, each in table["suites"].items()
    }
    cells: dict[str, Cell] = {}
    for row in table["cells"]:
        cell = _cell(row)
        if cell.name in cells:
            raise TableError(f"there are two cells {cell.name}")
        if missing := [name for name in cell.suites if name not in suites]:
            raise TableError(f"cell {cell.name}: there is no suite {', '.join(missing)}")
        cells[cell.name] = cell
    return Matrix(suites, cells)


def _cell(row: Mapping[str, Any]) -> Cell:
    known = {each.name for each in fields(Cell)}
    if unknown := sorted(set(row) - known):
        raise TableError(f"cell {row.get('name')}: unknown key {', '.join(unknown)}")
    lists = ("suites", "shows", "requirements", "options")
    given: dict[str, Any] = {
        name: tuple(value) if name in lists else value for name, value in row.items()
    }
    try:
        cell = Cell(**given)
    except TypeError as error:
        raise TableError(f"cell {row.get('name')}: {error}") from None
    if not cell.requirements and not cell.environment:
        raise TableError(f"cell {cell.name} has neither requirements nor an environment")
    return cell


def load_file() -> Matrix:
    """Read the table of the repository."""
    return load(FILE.read_text())
