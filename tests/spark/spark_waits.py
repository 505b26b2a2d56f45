"""Waits for what ranks do, and for what Spark does by itself."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 180.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Heard(io.StringIO):
    """A stream that calls a function with each line that ranks print, without its prefix."""

    def __init__(self, act: Callable[[str], object] = lambda line: None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._act = act
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            for line in text.splitlines():
                self.lines.append(line)
                self._act(line.partition(">:")[2])
        return len(text)

    def numbers(self, word: str) -> list[int]:
        """What stands behind a word at the beginning of lines."""
        texts = [line.partition(">:")[2].split() for line in self.lines]
        return [int(each[1]) for each in texts if each[:1] == [word]]
