"""Executes a notebook and writes its output into it.

Usage: ``python tests/notebooks/execute.py docs/notebook.ipynb``. A cell with the tag
``interrupt: TEXT`` is interrupted, as by a person, when it has printed TEXT.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient

if TYPE_CHECKING:
    from nbformat import NotebookNode

DEADLINE_S = 120
_INTERRUPT = "interrupt: "
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_FOLDER = re.compile(r"(?<=File )\S+/(?=horovod/)")  # where Horovod is installed


class _InterruptingClient(NotebookClient):
    """Interrupts the kernel in the cells that say so."""

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> Any:
        if msg["msg_type"] == "stream" and _awaited(cell) in msg["content"]["text"]:
            self._task = asyncio.get_running_loop().create_task(self.km.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


def _awaited(cell: NotebookNode) -> str:
    """Return the text after which a cell is interrupted; one that nothing prints if none is."""
    tags = cell.metadata.get("tags", [])
    texts = [tag.removeprefix(_INTERRUPT) for tag in tags if tag.startswith(_INTERRUPT)]
    return texts[0] if texts else "\0"


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run all cells in a new kernel, in place.

    Args:
        notebook: gets the output.
        folder: where the kernel runs.

    Raises:
        CellExecutionError: a cell fails that has no tag ``raises-exception``.
    """
    _InterruptingClient(
        notebook,
        timeout=DEADLINE_S,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
    ).execute(env={**os.environ, "OMP_NUM_THREADS": "1"})
    notebook.metadata.pop("language_info", None)  # the version of Python, of this moment
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "traceback" in output:
                plain = [_COLORS.sub("", text) for text in output.traceback]
                output.traceback = [_FOLDER.sub("", text) for text in plain]
        cell.outputs = _joined(cell.get("outputs", [])) if cell.cell_type == "code" else None
        if cell.outputs is None:
            del cell["outputs"]


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs with one piece for what a stream was given without interruption."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last["text"] += output.text
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    path = Path(sys.argv[1])
    executed = nbformat.read(path, as_version=4)
    execute(executed, path.parent)
    nbformat.write(executed, path)
