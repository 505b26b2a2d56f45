"""An elastic job of horovodrun whose workers count steps until a test ends it."""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import DEADLINE_S, Launcher, launched

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = str(Path(__file__).with_name("driven_worker.py"))
PLACE = re.compile(r"rank (\d+) of (\d+) is (\d+) at (\d+)")


class Job:
    """A job that trains until it is told to end."""

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.launcher = launcher
        self.directory = directory

    def hosts(self, *lines: str) -> None:
        """Replaces what the discovery script prints."""
        new = self.directory / "new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.directory / "hosts")

    def await_answer(self) -> None:
        """Waits until the script has been asked for what :meth:`hosts` has set."""
        # The next answer may have been read before.
        wanted, deadline = self._answers() + 2, time.monotonic() + DEADLINE_S
        while self._answers() < wanted:
            assert time.monotonic() < deadline, "the discovery script is not asked any more"
            time.sleep(0.02)

    def _answers(self) -> int:
        answers = self.directory / "answers"
        return answers.stat().st_size if answers.exists() else 0

    def trains(self, size: int, times: int = 1) -> dict[int, int]:
        """Waits until all ranks of a size have begun, with the same state; the pid of each rank.

        Args:
            size: of the generation.
            times: the how manieth one of this size it is.
        """
        pattern = rf"rank \d+ of {size} is"
        lines = self.launcher.wait_lines("stdout", pattern, size * times)[size * (times - 1) :]
        found = [each for line in lines if (each := PLACE.search(line)) is not None]
        assert len({each[4] for each in found}) == 1, lines
        return {int(each[1]): int(each[3]) for each in found}

    def ends(self, code: int = 0) -> None:
        """Lets the job end."""
        (self.directory / "end").touch()
        assert self.launcher.wait() == code, self.launcher.lines


@contextmanager
def elastic(directory: Path, *words: str, **env: str) -> Iterator[Job]:
    """A job with these words of horovodrun."""
    command = [sys.executable, WORKER, str(directory / "end")]
    with launched(*words, *command, **env) as launcher:
        yield Job(launcher, directory)


@contextmanager
def discovered(directory: Path, hosts: str, *words: str, **env: str) -> Iterator[Job]:
    """The same, with a discovery script that prints these hosts first."""
    (directory / "hosts").write_text(f"{hosts}\n")
    script = f"cat {directory / 'hosts'}; printf . >> {directory / 'answers'}"
    script += f"; test ! -e {directory / 'hang'} || sleep 4321"
    with elastic(directory, "--host-discovery-script", script, *words, **env) as job:
        yield job
