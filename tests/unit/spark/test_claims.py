"""Folders of a store that one program has for itself, and data sets of several drivers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horovod.spark.common import claims
from horovod.spark.common.cache import DataCache, Prepared
from horovod.spark.common.claims import Announcement, Claims, announced, held
from horovod.spark.common.store import FilesystemStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/a" if request.param == "file" else f"memory://{uuid.uuid4().hex}/a"


def test_a_folder_is_held_by_one_until_it_is_given_up(url: str) -> None:
    first = held(url, None)
    assert first is not None
    assert held(url, None) is None
    assert held(url + "b", None) is not None
    first.close()
    second = held(url, None)
    assert second is not None
    second.close()


def test_a_fork_leaves_what_its_parent_holds(url: str) -> None:
    mine = Claims()
    assert mine.take([url], 0, None)
    pid = os.fork()
    if pid == 0:
        mine.forget()
        os._exit(0 if held(url, None) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert held(url, None) is None


def test_all_folders_are_taken_or_none(url: str) -> None:
    mine, others = Claims(), Claims()
    assert others.take([url + "2"], 0, None)
    assert not mine.take([url + "1", url + "2"], 0, None)
    assert others.take([url + "1"], 0, None)
    others.close()
    assert mine.take([url + "1", url + "2", url + "1"], 0, None)
    assert mine.take([url + "1"], 0, None)
    assert not mine.take([url + "1"], 1, None)


def test_a_process_that_dies_holds_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys; from horovod.spark.common.claims import held;"
        "hold = held(sys.argv[1], None); print(hold is not None, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    path = f"file://{tmp_path}/a"
    told = subprocess.run(
        [sys.executable, "-c", program, path],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert told.stdout == "True\n"
    assert held(path, None) is not None


def test_where_there_are_no_locks_files_with_names_of_their_own_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(claims.fcntl, "flock", refuse)
    first = held(f"file://{tmp_path}/a", None)
    assert isinstance(first, Announcement)
    assert held(f"file://{tmp_path}/a", None) is None
    first.close()
    assert held(f"file://{tmp_path}/a", None) is not None


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        held(f"file://{tmp_path}/a", None)
    assert not (tmp_path / "elsewhere").exists()


@given(order=st.lists(st.integers(0, 2), max_size=9))
def test_of_several_that_announce_themselves_at_once_at_most_one_has_the_folder(
    order: list[int],
) -> None:
    """Each writes its file, looks, and goes away if it is not alone; others come in between."""
    folder = f"/{uuid.uuid4().hex}"
    winners = set()

    def steps(number: int) -> Any:
        mine = Announcement(MemoryFileSystem(), folder)
        yield
        is_alone = mine.is_alone()
        yield
        if is_alone:
            winners.add(number)
        else:
            mine.close()

    running = {number: steps(number) for number in range(3)}
    for number in [*order, *[0, 1, 2] * 3]:
        next(running[number], None)
    assert len(winners) <= 1
    # Whoever comes later finds it free if nobody has it.
    assert (announced(MemoryFileSystem(), folder) is None) == bool(winners)


class Frame:
    """Stands for a DataFrame."""


class Driver:
    """A process with data sets on a store that others use, too."""

    def __init__(self, store: FilesystemStore, name: int) -> None:
        self.store, self.name = store, name
        self.cache, self.claims = DataCache(), Claims()
        self.frames = [Frame() for _ in range(3)]
        self.used: list[tuple[ExitStack, int, int]] = []

    def paths(self, index: int) -> list[str]:
        return [self.store.get_train_data_path(index), self.store.get_val_data_path(index)]

    def begin(self, number: int) -> None:
        """Prepare a frame, and use it from now on."""

        def prepare(index: int) -> Prepared:
            for path in self.paths(index):
                self.store.write_text(f"{path}/data", f"{self.name} {number}")
            return Prepared("token", (1, 0, {}, 1.0))

        stack = ExitStack()
        using = self.cache.using(
            self.frames[number],
            "",
            prepare,
            lambda index, token: self.holds(index, number),
            lambda index: self.claims.take(self.paths(index), index, None),
        )
        index = stack.enter_context(using)
        self.used.append((stack, index, number))

    def holds(self, index: int, number: int) -> bool:
        """Whether the folders have the data of a frame."""
        found = [self.store.read(f"{path}/data").decode() for path in self.paths(index)]
        return found == [f"{self.name} {number}"] * 2

    def end(self) -> None:
        if self.used:
            self.used.pop(0)[0].close()

    def die(self) -> None:
        """Without a word, as far as a system of locks is concerned."""
        self.used.clear()
        self.claims.close()


ACTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["begin", "begin", "end", "clear", "die"])),
    max_size=30,
)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(acts=ACTS, frames=st.lists(st.integers(0, 2), min_size=30, max_size=30), local=st.booleans())
def test_no_driver_ever_reads_the_data_of_another_one(
    tmp_path: Path, acts: list[tuple[int, str]], frames: list[int], local: bool
) -> None:
    name = uuid.uuid4().hex
    store = FilesystemStore(str(tmp_path / name) if local else f"memory://{name}")
    drivers = [Driver(store, number) for number in range(3)]
    born = len(drivers)
    try:
        for (number, act), frame in zip(acts, frames, strict=False):
            driver = drivers[number]
            if act == "begin":
                driver.begin(frame)
            elif act == "end":
                driver.end()
            elif act == "clear":
                driver.cache.clear()
            else:
                driver.die()
                drivers[number] = Driver(store, born)
                born += 1
            for each in drivers:
                assert all(each.holds(index, used) for _, index, used in each.used)
            taken = [{path for path in each.claims._held} for each in drivers]
            assert sum(map(len, taken)) == len(set().union(*taken))
    finally:
        for each in drivers:
            each.claims.close()
    # Numbers do not grow without end: each driver has as many as it used at once.
    assert not drivers[0].store.exists(store.get_train_data_path(9))
