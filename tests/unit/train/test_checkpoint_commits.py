"""Which commits are written and read, in a directory and in what fsspec reaches."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from horovod._base import files
from horovod._train.elastic.checkpoint.commits import Commits, Snapshot
from horovod._train.elastic.checkpoint.folder import Folder, LocalFolder, open_folder
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 30.0


def snapshot(step: int, **plain: Any) -> Callable[[], Snapshot]:
    return lambda: Snapshot({"model": {"step": step}}, {"step": step, **plain})


def write(commits: Commits, *steps: int, **plain: Any) -> None:
    """Commits, each of which is written if it is its turn."""
    for step in steps:
        commits.made(snapshot(step, **plain), rank=0)
        commits.finish(writes=True)


def newest(folder: Folder) -> int | None:
    found = Commits(folder, 1).newest()
    return None if found is None else found[1].kept["model"]["step"]


@pytest.fixture(params=["path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    path = str(tmp_path / "new" / "commits")
    urls = {"path": path, "file": f"file://{path}", "memory": f"memory://{uuid4()}/commits"}
    return open_folder(urls[request.param])


def test_the_newest_is_read_and_two_are_kept(folder: Folder) -> None:
    assert newest(folder) is None
    write(Commits(folder, 1), 1, 2, 3)
    assert newest(folder) == 3
    assert sorted(folder.names()) == ["commit-000000002", "commit-000000003"]
    write(Commits(folder, 1), 4)  # the next job
    assert newest(folder) == 4
    assert sorted(folder.names()) == ["commit-000000003", "commit-000000004"]


def test_every_third_one_is_written(folder: Folder) -> None:
    commits = Commits(folder, 3)
    for step, found in ((1, None), (2, None), (3, 3), (4, 3), (5, 3), (6, 6)):
        write(commits, step)
        assert newest(folder) == found


def test_only_rank_0_writes(folder: Folder) -> None:
    commits = Commits(folder, 2)
    for step in range(1, 4):
        commits.made(snapshot(step), rank=1)
    commits.finish(writes=True)
    assert newest(folder) is None
    write(commits, 4)  # it has become rank 0
    assert newest(folder) == 4


def test_states_of_one_program_have_files_of_their_own(folder: Folder) -> None:
    write(Commits(folder, 1), 1)
    write(Commits(folder, 1, number=1), 2)
    assert newest(folder) == 1
    found = Commits(folder, 1, number=1).newest()
    assert found is not None
    assert found[1].plain == {"step": 2}


def damage(folder: Folder, name: str) -> None:
    with folder.reading(name) as (stream, size):
        content = stream.read(size - 1)
    folder.write(name, lambda stream: stream.write(content))


def test_a_broken_file_is_left_out(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    write(Commits(folder, 1), 1, 2)
    damage(folder, "commit-000000002")
    assert newest(folder) == 1
    assert "commit-000000002 is damaged" in caplog.text
    write(Commits(folder, 1), 3)
    assert newest(folder) == 3


def test_damaged_commits_and_no_other_are_an_error(folder: Folder) -> None:
    write(Commits(folder, 1), 1, 2, 3)
    for name in folder.names():
        damage(folder, name)
    with pytest.raises(StartError) as caught:
        newest(folder)
    for part in ("commit-000000002", "commit-000000003", "none of them can be read"):
        assert part in str(caught.value)
    assert sorted(folder.names()) == ["commit-000000002", "commit-000000003"]


def test_what_cannot_be_read_is_never_removed(folder: Folder) -> None:
    write(Commits(folder, 1), 1, 2)
    damage(folder, "commit-000000002")
    folder.write("commit-000000003", lambda stream: stream.write(b"horovod commit 2\n..."))
    # Of a worker that has become rank 0 and has read nothing.
    write(Commits(folder, 1), *range(4, 8))
    assert sorted(folder.names()) == [f"commit-00000000{number}" for number in (2, 3, 6, 7)]
    assert newest(folder) == 7


def test_what_was_left_is_removed_by_another_writer(folder: Folder) -> None:
    write(Commits(folder, 1), 1, 2, 3)
    write(Commits(folder, 1), 4)
    assert sorted(folder.names()) == ["commit-000000003", "commit-000000004"]


def test_what_is_not_read_here_is_not_taken_for_nothing(folder: Folder) -> None:
    folder.write("commit-000000001", lambda stream: stream.write(b"horovod commit 2\n..."))
    with pytest.raises(StartError, match=r"commit-000000001, from which .* of another version"):
        newest(folder)


def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"cannot read .*file.*Not a directory"):
        newest(LocalFolder(str(tmp_path / "file")))


class Small(LocalFolder):
    """Has space for so many commits."""

    def __init__(self, path: str, commits: int) -> None:
        super().__init__(path)
        self._commits = commits

    def write(self, name: str, fill: Any) -> None:
        def fill_what_fits(stream: Any) -> None:
            fill(stream)
            if len(self.names()) > self._commits:  # the part is there, too
                raise OSError(errno.ENOSPC, "No space left on device")

        super().write(name, fill_what_fits)


def test_space_for_two_commits_is_enough_for_a_third(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Small(str(tmp_path), 2)
    commits = Commits(folder, 1)
    write(commits, *range(1, 6))
    assert newest(folder) == 5
    assert len(folder.names()) == 2
    write(Commits(folder, 1), 6)  # of another process
    assert newest(folder) == 6
    assert not caplog.records


def test_the_only_commit_makes_no_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Small(str(tmp_path), 1)
    write(Commits(folder, 1), 1, 2)
    assert newest(folder) == 1
    assert "the commit was not written" in caplog.text


def test_a_damaged_commit_makes_no_room(tmp_path: Path) -> None:
    folder = Small(str(tmp_path), 2)
    write(Commits(folder, 1), 1, 2)
    damage(LocalFolder(str(tmp_path)), "commit-000000002")
    write(Commits(folder, 1), 3)
    assert newest(LocalFolder(str(tmp_path))) == 1
    assert sorted(folder.names()) == ["commit-000000001", "commit-000000002"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a small file system")
def test_a_full_disk_keeps_two_commits_of_three(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], check=True, timeout=30
        )
    except subprocess.CalledProcessError:
        pytest.skip("no file system can be mounted here")
    try:
        (tmp_path / "commit-000000001.of-a-dead-writer-1-0.part").write_bytes(bytes(300 << 10))
        write(Commits(LocalFolder(str(tmp_path)), 1), *range(1, 6), weights=bytes(300 << 10))
        assert newest(LocalFolder(str(tmp_path))) == 5
        assert len(os.listdir(tmp_path)) == 2
        assert not caplog.records
    finally:
        subprocess.run(["umount", tmp_path], check=True, timeout=30)


class Full(LocalFolder):
    """Has no space for a while."""

    is_full = True

    def write(self, name: str, fill: Any) -> None:
        def fill_half(stream: Any) -> None:
            fill(stream)
            if self.is_full:
                raise OSError(28, "No space left on device")

        super().write(name, fill_half)


def test_a_failed_write_is_said_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Full(str(tmp_path))
    commits = Commits(folder, 1)
    write(commits, 1, 2)
    assert folder.names() == []
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert f"rank 0: the commit was not written to {tmp_path}/commit-000000001" in warnings[0]
    assert "No space left on device" in warnings[0]
    folder.is_full = False
    write(commits, 3)
    assert newest(folder) == 3
    folder.is_full = True
    write(commits, 4)
    assert newest(folder) == 3
    assert len(caplog.records) == 2


def test_a_path_that_is_no_directory_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    write(Commits(LocalFolder(str(tmp_path / "file" / "below")), 1), 1)
    assert "the commit was not written to" in caplog.text


def test_what_a_dead_writer_began_is_removed(tmp_path: Path) -> None:
    part = tmp_path / "commit-000000007.other-12.part"
    part.touch()
    download = tmp_path / "dataset.tar.part"  # of the user
    download.touch()
    write(Commits(LocalFolder(str(tmp_path)), 1), 1)
    assert newest(LocalFolder(str(tmp_path))) == 1
    assert not part.exists()
    assert download.exists()


def test_a_link_in_the_place_of_a_commit_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "commits"
    folder.mkdir()
    # The next numbers of a writer of this process, which anybody can guess.
    for number in range(2000):
        part = f"commit-000000001{files.part_of_process()}{number}{files.PART}"
        (folder / part).symlink_to(precious)
    (folder / "commit-000000001").symlink_to(precious)
    LocalFolder(str(folder)).write("commit-000000001", lambda stream: stream.write(b"new"))
    assert precious.read_text() == "precious"
    assert (folder / "commit-000000001").read_bytes() == b"new"


class Slow(LocalFolder):
    """Writes when it is told to."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.began = threading.Semaphore(0)
        self.may_write = threading.Semaphore(0)

    def write(self, name: str, fill: Any) -> None:
        self.began.release()
        assert self.may_write.acquire(timeout=PATIENCE_S)
        super().write(name, fill)


def test_a_slow_disk_holds_nobody_up(tmp_path: Path) -> None:
    folder = Slow(str(tmp_path))
    commits = Commits(folder, 1)
    commits.made(snapshot(1), rank=0)
    assert folder.began.acquire(timeout=PATIENCE_S)
    for step in range(2, 5):
        commits.made(snapshot(step), rank=0)
    folder.may_write.release(2)
    commits.finish(writes=True)
    assert newest(folder) == 4
    assert len(folder.names()) == 2  # neither 2 nor 3


def test_who_is_left_out_writes_nothing_new(tmp_path: Path) -> None:
    folder = Slow(str(tmp_path))
    commits = Commits(folder, 1)
    commits.made(snapshot(1), rank=0)
    assert folder.began.acquire(timeout=PATIENCE_S)
    commits.made(snapshot(2), rank=0)
    threading.Timer(0.01, folder.may_write.release, (2,)).start()
    commits.finish(writes=False)
    assert newest(folder) == 1


def test_the_end_waits_only_so_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Slow(str(tmp_path))
    commits = Commits(folder, 1, patience_s=0.01)
    commits.made(snapshot(1), rank=0)
    commits.finish(writes=True)
    assert "is given up" in caplog.text
    folder.may_write.release()


def test_what_is_no_data_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commits = Commits(LocalFolder(str(tmp_path)), 1)
    write(commits, 1, 2, lock=threading.Lock())
    found = Commits(LocalFolder(str(tmp_path)), 1).newest()
    assert found is not None
    assert found[1].plain == {"step": 2}
    assert len(caplog.records) == 1
    assert "are without state.lock: it holds a _thread.lock" in caplog.text


def test_a_model_that_is_no_data_is_a_failed_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commits = Commits(LocalFolder(str(tmp_path)), 1)
    commits.made(lambda: Snapshot({"model": object()}, {}), rank=0)
    commits.finish(writes=True)
    assert not list(tmp_path.iterdir())
    assert "what state.model has kept holds a builtins.object" in caplog.text


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(StartError, match="s3://a/b, which needs fsspec: pip install fsspec"):
        open_folder("s3://a/b")


def test_an_unknown_kind_of_url_is_named() -> None:
    with pytest.raises(StartError, match=r"strange://a, which cannot be reached: .*strange"):
        open_folder("strange://a")


@pytest.fixture(autouse=True)
def warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "horovod")
