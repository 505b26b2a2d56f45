"""A kernel whose cells are run one by one, as by a notebook in a browser."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from queue import Empty
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 120.0


@dataclass
class Shown:
    """What a notebook shows below a cell.

    Attributes:
        stdout, stderr: text of these streams.
        result: of the last expression, as text.
        error: the name of the exception; empty if there was none.
        traceback: as shown, with the codes of its colors.
    """

    stdout: str = ""
    stderr: str = ""
    result: str = ""
    error: str = ""
    traceback: list[str] = field(default_factory=list)


class Kernel:
    """A kernel of Python, which ends with this context.

    Args:
        folder: where it runs.
    """

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(kernel_name="python3")
        self._folder = folder

    def __enter__(self) -> Kernel:
        self._manager.start_kernel(
            cwd=str(self._folder), env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=DEADLINE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def interrupt(self) -> None:
        """Do what "Interrupt kernel" of a notebook does."""
        self._manager.interrupt_kernel()

    def run(self, cell: str, on_output: Callable[[Shown], object] = lambda shown: None) -> Shown:
        """Run a cell, and return what is below it at its end.

        Args:
            cell: code.
            on_output: called while the cell runs, after each piece of output.
        """
        sent = self._client.execute(cell)
        shown, end_at = Shown(), time.monotonic() + DEADLINE_S
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=max(0.0, end_at - time.monotonic()))
            except Empty:
                raise AssertionError(f"the cell did not end: {shown}") from None
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return shown
            _add(shown, kind, content)
            if kind == "stream":
                on_output(shown)


def _add(shown: Shown, kind: str, content: dict[str, Any]) -> None:
    match kind:
        case "stream":
            setattr(shown, content["name"], getattr(shown, content["name"]) + content["text"])
        case "execute_result":
            shown.result = content["data"]["text/plain"]
        case "error":
            shown.error, shown.traceback = content["ename"], content["traceback"]
