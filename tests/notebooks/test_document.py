"""docs/notebook.ipynb runs, and shows what it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from execute import execute

if TYPE_CHECKING:
    from nbformat import NotebookNode

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


def shown_in(notebook: NotebookNode) -> list[list[str]]:
    """Return the lines below each cell without numbers, each once: an interrupt takes its time."""
    return [
        sorted({line for output in cell.outputs for line in _lines(output)})
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _lines(output: NotebookNode) -> list[str]:
    if output.output_type == "error":
        text = f"{output.ename}: {output.evalue}"
    else:
        text = output.get("text") or output.data["text/plain"]
    return re.sub(r"[0-9]+", "#", text).splitlines()


@pytest.mark.slow
def test_the_document_shows_what_its_cells_do() -> None:
    document = nbformat.read(DOCUMENT, as_version=4)
    expected = shown_in(document)
    assert [bool(lines) for lines in expected] == [False, True, True, True, True]
    execute(document, DOCUMENT.parent)
    assert shown_in(document) == expected
