"""What is read from the output folder of an experiment, whatever state it is in."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.grid import Line, runs_of

if TYPE_CHECKING:
    from pathlib import Path

RUNS = runs_of({"n": ["1", "2"]}, [Line("a"), Line("b")])


def begun(tmp_path: Path) -> record.Record:
    folder = tmp_path / "3"
    folder.mkdir()
    return record.begin(folder, RUNS)


def add(folder: Path, *events: dict[str, object]) -> None:
    for event in events:
        line = json.dumps({"time": 100.0 + len(event), **event})
        record.write(folder / record.EVENTS, line + "\n", append=True)


def test_the_process_that_runs_it_is_known(tmp_path: Path) -> None:
    own = begun(tmp_path)
    assert record.read(tmp_path / "3") == own
    assert own.is_running()
    assert (own.pid, own.host, own.number) == (os.getpid(), socket.gethostname(), 3)


def test_another_process_with_its_number_does_not_count(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / "3" / record.EXPERIMENT
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "started": psutil.Process().create_time() - 5}))
    assert not record.read(tmp_path / "3").is_running()
    path.write_text(json.dumps({**data, "host": "elsewhere"}))
    with pytest.raises(UsageError, match="started on elsewhere: ask there"):
        record.read(tmp_path / "3").is_running()


def test_links_in_the_place_of_its_files_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    for name in ("live.json", "live.json.new", "events.jsonl"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    record.write(tmp_path / "live.json", "new")
    assert (tmp_path / "live.json").read_text() == "new"
    with pytest.raises(UsageError, match="it is a symbolic link"):
        record.write(tmp_path / "events.jsonl", "new\n", append=True)
    assert (tmp_path / "precious").read_text() == "precious"


def test_states_of_runs(tmp_path: Path) -> None:
    own = begun(tmp_path)
    assert [run.state for run in own.run_records(is_running=True)] == ["pending", "pending"]
    add(own.folder_of(1), {"event": "run-started"}, {"event": "line-started", "line": 2})
    for is_running, state in ((True, "running"), (False, "lost")):
        first, second = own.run_records(is_running=is_running)
        assert (first.name, first.state, first.line, second.state) == ("3.1", state, 2, "pending")
    add(own.folder_of(1), {"event": "run-ended", "state": "failed", "exit_code": 7})
    first = own.run_records(is_running=True)[0]
    assert (first.state, first.exit_code, first.seconds) == ("failed", 7, 2.0)
    add(own.folder_of(1), {"event": "run-started"})  # once more
    assert own.run_records(is_running=True)[0].state == "running"


def test_the_last_results_count_and_half_a_line_does_not(tmp_path: Path) -> None:
    own = begun(tmp_path)
    folder = own.folder_of(2)
    add(folder, {"event": "run-started"})
    lines = [{"metrics": {"a": 1, "b": "x"}}, {"metrics": {"a": 0.25}}]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    record.write(folder / record.RESULTS, text + '{"metr')
    assert own.run_records(is_running=True)[1].results == {"a": 0.25, "b": "x"}
    record.write(folder / record.RESULTS, '{"metrics": {"a": 1}}\n', append=True)
    assert own.run_records(is_running=True)[1].results == {"a": 1, "b": "x"}


def test_the_table_of_runs() -> None:
    assert record.table(
        [
            record.RunRecord("1.1", "lr=1", "finished", 0, 12.34, 2, 0, {"loss": 0.123456789}),
            record.RunRecord("1.2", "lr=2", "running", None, 2.0, 1, 3),
            record.RunRecord("1.3", "lr=3"),
        ]
    ) == [
        "run  state                              seconds  results        parameters",
        "1.1  finished                           12.3     loss=0.123457  lr=1",
        "1.2  running (line 1, 3 ranks waiting)  2.0                     lr=2",
        "1.3  pending                                                    lr=3",
    ]


def test_what_cannot_be_read_is_explained(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(UsageError, match=r"no experiment 4 in .*; there is 3"):
        record.read(tmp_path / "4")
    (tmp_path / "3" / record.EXPERIMENT).write_text("{}")
    with pytest.raises(UsageError, match="cannot read"):
        record.read(tmp_path / "3")
    assert record.all_in(tmp_path / "nothing") == []
