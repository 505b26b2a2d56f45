"""This version reads the files of earlier ones; ``tests/data`` has a folder of each format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_formats import KEPT_HOST, moments_of, optimizer_with_shares, values

from horovod._train.elastic.checkpoint.commits import Commits
from horovod._train.elastic.checkpoint.folder import LocalFolder
from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.testing import run_ranks

DATA = Path(__file__).resolve().parents[2] / "data"
VERSIONS = sorted(DATA.glob("[0-9]*"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files of a version, which no other user may change."""
    copy = tmp_path / "kept"
    shutil.copytree(request.param, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


def test_there_are_files_of_the_first_version() -> None:
    assert "1.0" in [path.name for path in VERSIONS]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_shares_are_loaded_by_any_number_of_ranks(kept: Path, num_ranks: int) -> None:
    def load() -> Any:
        _, optimizer = optimizer_with_shares()
        optimizer.load_shares(kept / "shares")
        return moments_of(optimizer), optimizer.param_groups[0]["betas"]

    wanted = json.loads((kept / "shares.expected.json").read_text())
    for moments, betas in run_ranks(num_ranks, load):
        assert moments == wanted
        assert tuple(betas) == (0.8, 0.9)


def test_shares_of_a_later_format_are_refused_by_name(kept: Path) -> None:
    manifest = kept / "shares" / "shares.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 2}))

    def load() -> None:
        _, optimizer = optimizer_with_shares()
        with pytest.raises(UsageError, match="is of version 2, not of 1"):
            optimizer.load_shares(kept / "shares")

    run_ranks(1, load)


def test_commits_are_read(kept: Path) -> None:
    found = Commits(LocalFolder(str(kept / "commits")), 1).newest()
    assert found is not None
    snapshot = found[1]
    assert snapshot.kept["model"]["step"] == 7
    torch.testing.assert_close(snapshot.kept["model"]["weight"], torch.ones(2, 2))
    assert snapshot.plain.keys() == values().keys()
    for name, value in values().items():
        read = snapshot.plain[name]
        assert type(read) is type(value), name
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(read, value, rtol=0, atol=0)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(read, value)
            assert read.dtype == value.dtype
        else:
            assert read == value, name


def test_job_folders_are_read(kept: Path) -> None:
    (found,) = record.all_in(kept / "experiment")
    assert (found.number, found.host, len(found.runs)) == (1, KEPT_HOST, 2)
    with pytest.raises(UsageError, match=f"started on {KEPT_HOST}: ask there"):
        found.is_running()
    runs = found.run_records(is_running=False)
    assert [(run.state, run.exit_code, run.attempt) for run in runs] == [("finished", 0, 1)] * 2
    assert [run.results for run in runs] == [{"loss": 0.2}, {"loss": 0.4}]
    assert any("1.1: loss=0.2" in line for line in record.table(runs, {"loss": "min"}))


def test_timelines_keep_their_form(kept: Path, tmp_path: Path) -> None:
    """Who reads such files relies on the same keys of the same kinds of events."""
    events = json.loads((kept / "timeline.json").read_text())
    names = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert names == {"allreduce.loss", "broadcast.model"}
    path = tmp_path / "new.json"

    def trace() -> None:
        import horovod.torch as hvd

        hvd.init()
        hvd.start_timeline(str(path))
        hvd.allreduce(torch.ones(4), name="loss")
        hvd.broadcast(torch.ones(1), 0, name="model")
        hvd.barrier()
        hvd.stop_timeline()

    run_ranks(2, trace)
    assert keys_by_kind(events) <= keys_by_kind(json.loads(path.read_text()))


def keys_by_kind(events: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """Return the kind and the keys of each form of event; names of moves vary with the time."""
    named = ("process_name", "process_sort_index", "thread_name")
    return {
        (event["ph"], event["name"] if event.get("name") in named else "", *sorted(event))
        for event in events
        if event
    }
