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
from horovod.runner.experiment.plan import described

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
            record.RunRecord("1.1", "lr=1", "finished", 0, 12.34, 2, 0, {"loss": 0.123456789}, 1),
            record.RunRecord("1.2", "lr=2", "running", None, 2.0, 1, 3, attempt=2),
            record.RunRecord("1.3", "lr=3"),
        ]
    ) == [
        "run  state                              attempt  seconds  results        parameters",
        "1.1  finished                           1        12.3     loss=0.123457  lr=1",
        "1.2  running (line 1, 3 ranks waiting)  2        2.0                     lr=2",
        "1.3  pending                                                             lr=3",
    ]


def test_nothing_that_is_in_a_table_breaks_it() -> None:
    parameters = {"a": "x\ny", "b": "", "c": "d, e=f", "g": "\x1b[31m", "h": "größer"}
    results = {"text": "one\ntwo\t", "n": 0.5}
    run = record.RunRecord("1", described(parameters), "finished", 0, 1.0, 1, 0, results, 1)
    title, row = record.table([run])
    assert row.split("  ")[-1] == ('a="x\\ny", b="", c="d, e=f", g="\\u001b[31m", h=größer')
    assert 'text="one\\ntwo\\t", n=0.5' in row
    assert title.isprintable()
    assert row.isprintable()


NAN = float("nan")
# What became of line 2, in order: ("end of the attempt", what it had reported).
HISTORIES: dict[str, tuple[list[tuple[str, object]], str]] = {
    "one": ([("finished", 0.5)], "0.5"),
    "failed, restarted": ([("failed", 0.9), ("finished", 0.6)], "0.6"),
    "failed, restarted without a word": ([("failed", 0.9), ("finished", None)], ""),
    "failed twice": ([("failed", 0.9), ("failed", 0.8)], "0.8"),
    "failed twice, resumed": ([("failed", 0.9), ("failed", 0.8), ("finished", 0.7)], "0.7"),
    "NaN": ([("finished", NAN)], "nan"),
    "failed, then NaN": ([("failed", 0.9), ("finished", NAN)], "nan"),
    "NaN, then not": ([("failed", NAN), ("finished", 0.3)], "0.3"),
    "text": ([("finished", "0.99")], "0.99"),
    "failed": ([("failed", 0.99)], "0.99"),
    "killed": ([("killed", 0.99)], "0.99"),
    "pruned": ([("pruned", 0.99)], "0.99"),
    "lost": ([("lost", 0.99)], "0.99"),
    "running": ([("running", 0.99)], "0.99"),
    "infinite": ([("finished", float("-inf"))], "-inf"),
}


def written(folder: Path, ends: list[tuple[str, object]], *, resumed: bool) -> None:
    """Write what an experiment does: line 1 ends well each time that it is executed."""
    for attempt, (end, value) in enumerate(ends, 1):
        if attempt == 1 or resumed:
            add(folder, {"event": "run-started", "attempt": attempt})
            add(folder, {"event": "line-started", "line": 1, "attempt": attempt})
            reported(folder, 1, attempt, {"first": attempt})
        add(folder, {"event": "line-started", "line": 2, "attempt": attempt})
        if value is not None:
            reported(folder, 2, attempt, {"score": value, f"only_in_{attempt}": 1})
        is_over = attempt == len(ends) or resumed
        if end not in ("lost", "running") and is_over:
            code = int(end != "finished")
            add(folder, {"event": "run-ended", "state": end, "exit_code": code})


def reported(folder: Path, line: int, attempt: int, metrics: dict[str, object]) -> None:
    text = json.dumps({"time": 1.0, "line": line, "attempt": attempt, "metrics": metrics})
    record.write(folder / record.RESULTS, f"{text}\n", append=True)


@pytest.mark.parametrize("resumed", [False, True], ids=["restarted", "resumed"])
@pytest.mark.parametrize("name", HISTORIES)
def test_results_are_those_of_the_last_attempt(name: str, resumed: bool, tmp_path: Path) -> None:
    ends, expected = HISTORIES[name]
    own = begun(tmp_path)
    written(own.folder_of(1), ends, resumed=resumed)
    reported(own.folder_of(1), 2, 0, {"score": 7})  # of a process that outlived its attempt
    run = own.run_records(is_running=ends[-1][0] == "running")[0]
    assert (run.state, run.attempt) == (ends[-1][0], len(ends))
    last = len(ends)
    assert str(run.results.get("score", "")) == expected
    assert run.results["first"] == (last if resumed else 1)
    names = {each for each in run.results if each.startswith("only_in_")}
    assert names == ({f"only_in_{last}"} if expected else set())


@pytest.mark.parametrize("goal", ["max", "min"])
@pytest.mark.parametrize("name", HISTORIES)
def test_the_best_run_has_finished_with_a_number(name: str, goal: str, tmp_path: Path) -> None:
    """Against a run with 0.4, whichever of them comes first."""
    ends, expected = HISTORIES[name]
    can_be_best = ends[-1][0] == "finished" and name not in ("NaN", "failed, then NaN", "text")
    can_be_best = can_be_best and bool(expected)
    for index in (1, 2):
        root = tmp_path / f"{index}"
        root.mkdir()
        own = begun(root)
        written(own.folder_of(index), ends, resumed=False)
        written(own.folder_of(3 - index), [("finished", 0.4)], resumed=False)
        wins = can_be_best and (max if goal == "max" else min)(float(expected), 0.4) != 0.4
        best, score = (index, float(expected)) if wins else (3 - index, 0.4)
        last = record.table(own.run_records(is_running=True), {"score": goal})[-1]
        assert last == f"the best run is 3.{best}: score={score:g}"


def test_no_run_is_the_best_if_none_has_a_number(tmp_path: Path) -> None:
    own = begun(tmp_path)
    for index, value in ((1, NAN), (2, "high")):
        written(own.folder_of(index), [("finished", value)], resumed=False)
    lines = record.table(own.run_records(is_running=False), {"score": "max"})
    assert lines[-1] == "there is no best run: no finished run has a number for score"


def test_what_names_no_line_counts_in_the_first_attempt_only(tmp_path: Path) -> None:
    own = begun(tmp_path)
    for resumed, expected in ((1, {"a": 1}), (2, {})):
        add(own.folder_of(1), {"event": "run-started", "attempt": resumed})
        record.write(own.folder_of(1) / record.RESULTS, '{"metrics": {"a": 1}}\n[1]\n')
        assert own.run_records(is_running=True)[0].results == expected


def test_what_cannot_be_read_is_explained(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(UsageError, match=r"no experiment 4 in .*; there is 3"):
        record.read(tmp_path / "4")
    (tmp_path / "3" / record.EXPERIMENT).write_text("{}")
    with pytest.raises(UsageError, match="cannot read"):
        record.read(tmp_path / "3")
    assert record.all_in(tmp_path / "nothing") == []
