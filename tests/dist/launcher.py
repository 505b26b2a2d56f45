"""Starts horovodrun as a user does, and reads what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

import horovod
from horovod._rendezvous.reserved_port import reserve_port

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = str(Path(horovod.__file__).resolve().parent.parent)
QUICK_IMPORTS = str(Path(__file__).parent.with_name("quick_imports"))
# Ends what hangs. It limits nothing that works: on a busy machine, PyTorch takes 20 s to import.
DEADLINE_S = 90.0


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([QUICK_IMPORTS, SOURCE]), **more}


class Launcher:
    """A running horovodrun whose output is collected by threads."""

    def __init__(self, *words: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "horovod.runner.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**env),
            text=True,
        )
        self.began_s = time.monotonic()
        self.lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._ended: set[str] = set()
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in self.lines
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        with getattr(self.process, name) as stream:
            for line in stream:
                with self._news:
                    self.lines[name].append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended.add(name)
            self._news.notify_all()

    def wait_lines(
        self, name: str, pattern: str, count: int = 1, timeout_s: float = DEADLINE_S
    ) -> list[str]:
        """Waits until that many lines match, and returns them; not beyond the end of the stream."""

        def found() -> list[str]:
            return [line for line in self.lines[name] if re.search(pattern, line)]

        with self._news:
            self._news.wait_for(lambda: len(found()) >= count or name in self._ended, timeout_s)
            assert len(found()) >= count, f"no {count} lines {pattern!r} among {self.lines}"
            return found()

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Waits for the end of the launcher and of its output; returns the exit code."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(DEADLINE_S)
            assert not reader.is_alive(), "a process of the job still holds the console"
        return code

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines["stderr"])

    def descendants(self) -> list[psutil.Process]:
        """Guard, agent, ranks and their children."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_descendant(self, *words: str) -> psutil.Process:
        """Waits until one of them has these words in its command line."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            for process in self.descendants():
                with suppress(psutil.Error):  # it has ended meanwhile
                    if set(words) <= set(process.cmdline()):
                        return process
            time.sleep(0.02)
        raise AssertionError(f"no process has {words} in its command line")


@contextmanager
def launched(*words: str, **env: str) -> Iterator[Launcher]:
    launcher = Launcher(*words, **env)
    try:
        yield launcher
    finally:
        family = launcher.descendants() if launcher.process.poll() is None else []
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.wait(DEADLINE_S)
        _, alive = psutil.wait_procs(family, 10)
        for process in alive:
            process.kill()


def horovodrun(*words: str, **env: str) -> Launcher:
    """Runs horovodrun to its end."""
    with launched(*words, **env) as launcher:
        launcher.wait()
    return launcher


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody else gets as long as the context lasts, but who asks for it by number."""
    with reserve_port() as reserved:
        yield int(reserved.getsockname()[1])


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def assert_all_gone(processes: list[psutil.Process], timeout_s: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout_s)
    assert not [(process.pid, process.cmdline()) for process in alive]
