"""One process at a time runs an experiment."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment.ownership import LOCK, owning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENDER = """
import os, sys
from pathlib import Path
from horovod.errors import UsageError
from horovod.runner.experiment.ownership import owning
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    sys.stdin.readline()
    try:
        with owning(Path(sys.argv[1]), print):
            print("owner", flush=True)
            sys.stdin.readline()
        print("left", flush=True)
    except UsageError as error:
        print(error, flush=True)
"""


class Contender:
    """A process that wants an experiment each time it is told to."""

    def __init__(self, folder: Path, times: int) -> None:
        words = [sys.executable, "-c", CONTENDER, str(folder), str(times)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self.said() == "ready"

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Contender]]:
    """Starts contenders for experiment 3."""
    started: list[Contender] = []

    def begin(times: int) -> Contender:
        started.append(Contender(tmp_path / "3", times))
        return started[-1]

    (tmp_path / "3").mkdir()
    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate(timeout=60)


def test_one_of_many_that_begin_in_the_same_instant_is_the_owner(
    start: Callable[[int], Contender],
) -> None:
    contenders = [start(20) for _ in range(3)]
    for _ in range(20):
        for each in contenders:
            each.go_on()
        told = [each.said() for each in contenders]
        assert told.count("owner") == 1, told
        assert sum("experiment 3 is still running" in each for each in told) == 2, told
        owner = contenders[told.index("owner")]
        owner.go_on()
        assert owner.said() == "left"


def test_the_lock_dies_with_its_process(start: Callable[[int], Contender], tmp_path: Path) -> None:
    owner = start(1)
    owner.go_on()
    assert owner.said() == "owner"
    with pytest.raises(UsageError, match="is still running"), owning(tmp_path / "3", print):
        pass
    owner.process.kill()
    owner.process.wait(60)
    with owning(tmp_path / "3", print), pytest.raises(UsageError), owning(tmp_path / "3", print):
        pass
    with owning(tmp_path / "3", print):  # for others when its block has ended
        pass


def test_a_lock_that_cannot_be_had_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = pytest.raises(UsageError, match="there is no experiment 3")
    with missing, owning(tmp_path / "3", print):
        pass
    folder = tmp_path / "4"
    folder.mkdir()
    (folder / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot write the output"), owning(folder, print):
        pass
    (folder / LOCK).unlink()

    def without_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    said: list[str] = []
    with owning(folder, said.append):
        assert "cannot be locked (Function not implemented)" in said[0]
