"""Files in folders that others may write: no link is followed, nothing of others is trusted."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from horovod._base import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file elsewhere that a link points to."""
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "precious"
    path.write_text("precious")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "open").mkdir(mode=0o777)
    return tmp_path / "open"


def write(descriptor: int, data: bytes = b"new") -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def replace(path: Path) -> None:
    with files.writing_whole(path) as stream:
        stream.write(b"new")


def make_anew(path: Path) -> None:
    write(files.create_anew(path))


@pytest.mark.parametrize("put", [replace, make_anew])
@pytest.mark.parametrize("before", ["nothing", "a file", "a link", "a link to nothing"])
def test_a_file_takes_the_place_of_a_link_and_what_it_points_to_stays(
    folder: Path, precious: Path, put: Callable[[Path], None], before: str
) -> None:
    path = folder / "out"
    if before == "a file":
        path.write_text("old and long")
    elif before != "nothing":
        path.symlink_to(precious if before == "a link" else folder.parent / "absent")
    put(path)
    assert path.read_text() == "new"
    assert not path.is_symlink()
    assert precious.read_text() == "precious"
    assert os.listdir(folder) == ["out"]
    assert not (folder.parent / "absent").exists()


@pytest.mark.parametrize("put", [replace, make_anew])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link to a device"])
def test_what_is_no_file_is_neither_removed_nor_written(
    folder: Path, put: Callable[[Path], None], kind: str
) -> None:
    path = folder / "out"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    before = os.lstat(path)
    with pytest.raises(OSError, match="not a regular file"):
        put(path)
    assert os.lstat(path) == before
    assert os.listdir(folder) == ["out"]


def test_a_link_in_the_place_of_the_part_is_not_followed(
    folder: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_num_parts", iter([7]))
    part = folder / f"out{files.part_of_process()}7{files.PART}"
    part.symlink_to(precious)
    replace(folder / "out")
    assert precious.read_text() == "precious"
    assert os.listdir(folder) == ["out"]


def test_a_block_that_fails_leaves_what_was_there(folder: Path) -> None:
    (folder / "out").write_text("old")
    with suppress(KeyError), files.writing_whole(folder / "out") as stream:
        stream.write(b"half")
        raise KeyError
    assert (folder / "out").read_text() == "old"
    assert os.listdir(folder) == ["out"]


def test_two_writers_of_one_file_leave_one_whole_file(folder: Path) -> None:
    both = threading.Barrier(2, timeout=30)

    def put(data: bytes) -> None:
        with files.writing_whole(folder / "out") as stream:
            stream.write(data)
            both.wait()
            stream.write(data)

    threads = [threading.Thread(target=put, args=(data,)) for data in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (folder / "out").read_text() in ("aa", "bb")
    assert os.listdir(folder) == ["out"]


def test_a_whole_file_that_may_replace_nothing(folder: Path, precious: Path) -> None:
    for name in ("out", "link"):
        if name == "link":
            (folder / name).symlink_to(precious)
        for text in (b"first", b"second"):
            path = folder / name
            with suppress(FileExistsError), files.writing_whole(path, replaces=False) as stream:
                stream.write(text)
    assert (folder / "out").read_text() == "first"
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(folder)) == ["link", "out"]


def test_parts_of_the_dead_go_after_an_hour_and_nothing_else(folder: Path) -> None:
    names = ["out.h-1-2.part", "out.h-3-4.part", "other.h-1-2.part", "out.part", "out.old"]
    for name in names:
        (folder / name).write_text("")
        os.utime(folder / name, (0, 0))
    os.utime(folder / "out.h-3-4.part")
    replace(folder / "out")
    assert sorted(os.listdir(folder)) == sorted(["out", *names[1:]])


def test_a_new_file_replaces_nothing(folder: Path, precious: Path) -> None:
    (folder / "link").symlink_to(precious)
    (folder / "dangling").symlink_to(folder / "absent")
    for name in ("link", "dangling"):
        with pytest.raises(FileExistsError):
            files.create(folder / name)
    write(files.create(folder / "out", 0o600))
    assert stat.S_IMODE((folder / "out").stat().st_mode) == 0o600
    assert sorted(os.listdir(folder)) == ["dangling", "link", "out"]


def test_lines_are_appended_to_files_only(folder: Path, precious: Path) -> None:
    for _ in range(2):
        write(files.open_to_append(folder / "out"), b"line\n")
    assert (folder / "out").read_text() == "line\nline\n"
    (folder / "link").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        files.open_to_append(folder / "link")
    os.mkfifo(folder / "fifo")
    with pytest.raises(OSError, match="fifo"):
        files.open_to_append(folder / "fifo")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    ("mode", "denied", "reason"),
    [
        (0o644, files.WRITES, ""),
        (0o600, files.ANY_ACCESS, ""),
        (0o664, files.WRITES, "change it (mode 0664): chmod it to 0644"),
        (0o602, files.WRITES, "change it (mode 0602): chmod it to 0600"),
        (0o644, files.ANY_ACCESS, "read it (mode 0644): chmod it to 0600"),
    ],
)
def test_a_file_is_trusted_if_only_its_owner_has_the_right(
    precious: Path, mode: int, denied: int, reason: str
) -> None:
    precious.chmod(mode)
    if not reason:
        with os.fdopen(files.open_trusted(precious, denied)) as stream:
            assert stream.read() == "precious"
        return
    with pytest.raises(PermissionError) as caught:
        files.open_trusted(precious, denied)
    assert reason in caught.value.strerror
    assert caught.value.filename == str(precious)


def test_a_file_of_another_user_is_not_trusted(
    precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {owner}, not to user {owner + 1}"):
        files.open_trusted(precious)


def test_a_link_is_trusted_only_where_it_may_be_followed(folder: Path, precious: Path) -> None:
    (folder / "link").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        files.open_trusted(folder / "link")
    os.close(files.open_trusted(folder / "link", follows=True))
    os.mkfifo(folder / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        files.open_trusted(folder / "fifo")
