"""Jobs with a page, and what tests do with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import horovod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
SOURCE = str(Path(horovod.__file__).resolve().parent.parent)
# What loads PyTorch itself does so as quickly as a program without it.
PATH = os.pathsep.join([str(HERE.with_name("quick_imports")), SOURCE])
DEADLINE_S = 90.0


HOROVODRUN = (sys.executable, "-m", "horovod.runner.cli")


class Job:
    """A running horovodrun, or another command, and what it prints."""

    def __init__(
        self,
        words: list[str],
        home: Path,
        module: tuple[str, ...] = HOROVODRUN,
        env: Mapping[str, str] | None = None,
    ) -> None:
        environ = {**os.environ, "PYTHONPATH": PATH, "HOME": str(home), **(env or {})}
        self.process = subprocess.Popen(
            [*module, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, pattern: str, timeout_s: float = DEADLINE_S) -> str:
        """Return the first line that matches."""

        def found() -> list[str]:
            return [line for line in self.lines if re.search(pattern, line)]

        with self._news:
            self._news.wait_for(lambda: bool(found()) or not self._reader.is_alive(), timeout_s)
            assert found(), f"no line {pattern!r} in time among {self.lines[-40:]}"
            return found()[0]

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return self.wait_for("the page of the job: ").split("job: ")[1]

    def end(self) -> None:
        """End the job if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(30)


@contextmanager
def started(home: Path, *words: str) -> Iterator[Job]:
    """A job for the time of the block."""
    job = Job(list(words), home)
    try:
        yield job
    finally:
        job.end()


@contextmanager
def slow_job(
    home: Path, phase: str, rank: int, delay_s: float, *options: str
) -> Iterator[tuple[Job, Path]]:
    """Three ranks of slow_rank.py; the second value is the file that ends them."""
    stop = home / "stop"
    command = [
        sys.executable,
        str(HERE / "slow_rank.py"),
        phase,
        str(rank),
        str(delay_s),
        str(stop),
    ]
    with started(home, "-np", "3", *options, *command) as job:
        yield job, stop


@contextmanager
def opened(browser: Browser, address: str, **options: object) -> Iterator[Page]:
    """The page of a job; an error of its script is one of the test."""
    page = browser.new_page(**options)  # type: ignore[arg-type]
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    assert errors == []


def until(condition: object, timeout_s: float, what: str) -> float:
    """Wait until a function returns something true; return how long that took, in seconds."""
    began = time.monotonic()
    assert callable(condition)
    while not condition():
        assert time.monotonic() - began < timeout_s, f"{what} did not happen in {timeout_s} s"
        time.sleep(0.05)
    return time.monotonic() - began
