"""What is found wrong before any rank runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from horovod.errors import StartError, UsageError
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting.before_start import check_settings, check_timeline

if TYPE_CHECKING:
    from pathlib import Path


def settings(cwd: str = "/", **variables: str) -> JobSettings:
    return JobSettings(("true",), cwd, {"HOROVOD_TIMELINE": "/nowhere/t.json"}, variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_CPU_OPERATIONS", "foo"),
        ("HOROVOD_FUSION_THRESHOLD", "64M"),
        ("HOROVOD_CACHE_CAPACITY", "-1"),
        ("HOROVOD_DETERMINISTIC", "perhaps"),
    ],
)
def test_a_variable_that_no_rank_could_read_is_named(name: str, value: str) -> None:
    with pytest.raises(StartError, match=f"{name}='?{value}"):
        check_settings(settings(**{name: value}))


def test_what_ranks_can_read_and_what_is_not_ours_passes() -> None:
    check_settings(settings(HOROVOD_CPU_OPERATIONS="MPI", HOROVOD_MINE="?", HOROVOD_CYCLE_TIME="1"))


@pytest.mark.parametrize("mode", ["replace", "remove", "REMOVE"])
def test_only_elastic_jobs_replace_slow_workers(mode: str) -> None:
    slow = settings(HOROVOD_SLOW_WORKER=mode)
    with pytest.raises(UsageError, match=f"--slow-worker {mode.lower()} .* give --min-np, too"):
        check_settings(slow)
    check_settings(slow, is_elastic=True)
    check_settings(settings(HOROVOD_SLOW_WORKER="report"))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no/t.json", "there is no folder {cwd}/no; make it, or name another file"),
        ("/nowhere/t.json", "there is no folder /nowhere; make it, or name another file"),
        ("folder", "it is a folder; name a file"),
    ],
)
def test_a_timeline_that_cannot_be_written_is_refused(
    path: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as caught:
        check_timeline(settings(str(tmp_path), HOROVOD_TIMELINE=path))
    assert str(caught.value).endswith(f"is to be {path}: {problem.format(cwd=tmp_path)}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_refused() -> None:
    with pytest.raises(UsageError, match="it is not writable; name another file"):
        check_timeline(settings(HOROVOD_TIMELINE="/proc/t.json"))


@pytest.mark.parametrize("path", ["t.json", "folder/t.json", "old.json", "dynamic", ""])
def test_a_timeline_that_can_be_written_passes(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old.json").write_text("")
    check_timeline(settings(str(tmp_path), HOROVOD_TIMELINE=path))
