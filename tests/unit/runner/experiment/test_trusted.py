"""Files of an experiment that another user could have written are not used."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.background import resumed, status
from horovod.runner.experiment.display import TOKEN, token_in
from horovod.runner.experiment.grid import Line, runs_of
from horovod.runner.experiment.training import new_folder
from horovod.runner.experiment.trusted import check_folder, read_trusted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of experiment 1, begun by a process that has ended, with the umask of a group."""
    job = tmp_path / "job.yml"
    job.write_text("project: p\ntrain: {run: a}\n")
    before = os.umask(0o002)
    try:
        found = new_folder(tmp_path / "output", str(job))
        record.begin(found, runs_of({}, [Line("a")]))
    finally:
        os.umask(before)
    monkeypatch.setattr(record.Record, "is_running", lambda self: False)
    return found


def test_what_an_experiment_writes_is_trusted_under_any_umask(folder: Path) -> None:
    assert resumed(folder).file.project == "p"
    assert len(token_in(folder)) == 64


def test_an_experiment_begins_where_modes_cannot_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(os, "chmod", refuse)
    (job := tmp_path / "job.yml").write_text("project: p\ntrain: {run: a}\n")
    before = os.umask(0o002)
    try:
        found = new_folder(tmp_path / "output", str(job))
        record.begin(found, runs_of({}, [Line("a")]))
    finally:
        os.umask(before)
    with pytest.raises(UsageError, match="other users may change it"):
        record.read(found)


@pytest.mark.parametrize("name", [".", record.EXPERIMENT, record.JOB_FILE])
def test_what_others_may_write_is_not_used(folder: Path, name: str) -> None:
    path = folder / name
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(UsageError, match=r"not used: other users may change it .* chmod it to 0"):
        resumed(folder)


@pytest.mark.parametrize("name", [".", record.EXPERIMENT, record.JOB_FILE])
def test_a_link_is_not_used(folder: Path, name: str) -> None:
    path = folder / name if name != "." else folder
    aside = folder.parent / "aside"
    path.rename(aside)
    path.symlink_to(aside)
    with pytest.raises(UsageError, match="link"):
        resumed(folder)


def test_what_belongs_to_another_user_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_in(folder)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(UsageError, match="belongs to user"):
        resumed(folder)
    with pytest.raises(UsageError, match="belongs to user"):
        token_in(folder)


def test_one_experiment_that_is_not_used_does_not_hide_the_others(folder: Path) -> None:
    root = folder.parent
    second = new_folder(root, str(root.parent / "job.yml"))
    record.begin(second, runs_of({}, [Line("a")]))
    folder.chmod(0o777)
    assert [each.number for each in record.all_in(root)] == [2]
    assert record.last_in(root) == 2
    status(root, None, out := io.StringIO())
    title, row, refused = out.getvalue().splitlines()
    assert title.startswith("experiment")
    assert row.startswith("2 ")
    assert refused.startswith(f"{folder} is not used: other users may change it")
    second.chmod(0o777)
    assert record.last_in(root) == 2  # and reading it says why not, in place of showing another one


@pytest.mark.parametrize("kind", ["readable", "link", "fifo"])
def test_a_planted_token_is_not_used(folder: Path, kind: str) -> None:
    path = folder / TOKEN
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        target = path if kind == "readable" else folder / "planted"
        target.write_text("0" * 64)
        target.chmod(0o644 if kind == "readable" else 0o600)
        if kind == "link":
            path.symlink_to(target)
    with pytest.raises(UsageError, match="is not used"):
        token_in(folder)


def test_what_is_missing_is_missing(tmp_path: Path) -> None:
    for check in (check_folder, read_trusted):
        with pytest.raises(FileNotFoundError):
            check(tmp_path / "no")
