"""The convenience layer in a process of its own size: a job of one rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from horovod._rank import context
from horovod._settings.config import Config
from horovod._train.process_set import ProcessSet, global_process_set
from horovod.errors import NotInitializedError, StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_job_is_left() -> Iterator[None]:
    yield
    context.shutdown()


def test_queries_need_init() -> None:
    for query in (context.rank, context.size, context.local_rank, context.cross_size):
        with pytest.raises(NotInitializedError, match=r"hvd\.init"):
            query()
    assert not context.is_initialized()


def test_a_process_without_a_launcher_is_a_job_of_one() -> None:
    context.init()
    context.init()
    assert (context.rank(), context.size(), context.local_rank(), context.local_size()) == (
        0,
        1,
        0,
        1,
    )
    assert context.is_homogeneous()
    context.shutdown()
    assert not context.is_initialized()
    context.init()
    assert context.size() == 1


@pytest.mark.parametrize("comm", [None, [], [0], (0,)])
@pytest.mark.parametrize("process_sets", [None, [], "dynamic", "Dynamic"])
def test_init_takes_what_old_scripts_give(comm: object, process_sets: object) -> None:
    context.init(comm, process_sets)  # type: ignore[arg-type]
    assert context.is_initialized()


@pytest.mark.parametrize(
    ("comm", "process_sets", "words"),
    [
        ([0, 1], None, "all ranks"),
        (object(), None, "MPI communicators"),
        (None, [object()], "number 0 is a object"),
        (None, [[0]], "number 0 is a list"),
        (None, "static", r"='static'\) is neither"),
        (None, 3, r"=3\) is neither"),
        (None, [ProcessSet([0])], r"number 0, .* is the same as the global process set"),
        (None, [ProcessSet([1])], r"ranks \[1\] does not fit into the job"),
        (None, [ProcessSet([])], "at least one rank"),
        (None, [global_process_set], "at least one rank"),
    ],
)
def test_init_refuses_what_makes_no_sense(comm: object, process_sets: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        context.init(comm, process_sets)  # type: ignore[arg-type]
    assert not context.is_initialized()


def test_a_running_job_looks_process_sets_up(monkeypatch: pytest.MonkeyPatch) -> None:
    context.init()
    # A job of one rank has no set but the global one.
    monkeypatch.setattr(context.current().job(), "config", Config(size=2))
    with pytest.raises(KeyError, match=r"ranks \[1\]"):
        context.init(process_sets=[ProcessSet([1])])
    assert context.is_initialized()


def test_settings_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert context.settings() == Config()
    monkeypatch.setenv("HOROVOD_CHECK_IN_SYNC_STEPS", "7")
    context.init()
    assert context.settings().check_in_sync_steps == 7


def test_without_mpi_the_program_hears_that_it_supports_no_threads() -> None:
    with pytest.raises(NotInitializedError):
        context.mpi_threads_supported()
    context.init()
    assert context.mpi_threads_supported() is False


def test_what_is_wrong_with_a_setting_is_told_without_our_own_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOROVOD_CPU_OPERATIONS", "foo")
    with pytest.raises(StartError, match="is none of native, gloo, mpi") as caught:
        context.init()
    assert [entry.name for entry in caught.traceback][1:] == ["init"]
    assert caught.value.__context__ is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a link to another user")
def test_a_timeline_is_not_written_through_a_link_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, precious = tmp_path / "timeline.json", tmp_path / "precious"
    precious.write_text("precious")
    link.symlink_to(precious)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    os.chown(link, 4712, -1, follow_symlinks=False)
    context.init()
    with pytest.raises(UsageError, match=r"timeline\.json is a symbolic link of user 4712"):
        context.start_timeline(str(link))
    context.shutdown()
    for variable in ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE_LOG"):
        monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
        monkeypatch.setenv(variable, str(link))
        with pytest.raises(UsageError, match="of user 4712"):
            context.init()
        monkeypatch.delenv(variable)
    assert precious.read_text() == "precious"
