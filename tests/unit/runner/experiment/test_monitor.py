"""What a monitor makes of the files of an experiment."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.display import TOKEN, exposition, token_in
from horovod.runner.experiment.live import INTEREST_S, LiveReport
from horovod.runner.experiment.monitor import RankView, RunView, rows_of, slowest

if TYPE_CHECKING:
    from pathlib import Path

RANK = RankView("3.1", 2, 0, "a", "running", 4.4, 10.0, 0.75, 3 << 20, "step 7")


def told(folder: Path, *events: dict[str, Any], end: str = "\n") -> None:
    text = "\n".join(json.dumps({"time": time.time(), **each}) for each in events)
    record.write(folder / record.EVENTS, text + end, append=True)


STARTED = {"event": "line-started", "line": 1, "of": 1, "text": "x", "hosts": ["a", "b"]}
STARTED["logs"] = "line-01"


def test_only_what_is_new_is_read_and_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    view = RunView("1", tmp_path)
    assert view.look() == []
    told(tmp_path, {"event": "run-started"}, STARTED)
    assert [(each.rank, each.host, each.state) for each in view.look()] == [
        (0, "a", "running"),
        (1, "b", "running"),
    ]
    ended = json.dumps(
        {"time": 1.0, "event": "rank-ended", "rank": 1, "exit_code": 0, "seconds": 2.5}
    )
    with (tmp_path / record.EVENTS).open("a") as file:
        file.write(ended[:30])
        file.flush()
        assert [each.state for each in view.look()] == ["running"] * 2
        file.write(ended[30:] + "\n")
    assert [(each.state, each.seconds) for each in view.look()][1] == ("waiting", 2.5)
    told(tmp_path, {"event": "line-ended"}, {"event": "run-ended"})
    assert view.look() == []


def test_rates_are_those_since_the_last_look(tmp_path: Path) -> None:
    view = RunView("1", tmp_path)
    told(tmp_path, STARTED)
    record.write(tmp_path / record.LIVE, json.dumps({0: [10.0, 1.0, 100], 1: [5.0, 1.0, 100]}))
    assert [each.collectives for each in view.look()] == [None, None]
    record.write(tmp_path / record.LIVE, json.dumps({0: [14.0, 4.0, 140], 1: [5.0, 1.0, 100]}))
    assert [(each.collectives, each.waiting) for each in view.look()] == [
        (10.0, 0.75),
        (None, None),
    ]
    told(tmp_path, {**STARTED, "line": 2})  # ranks begin anew
    record.write(tmp_path / record.LIVE, json.dumps({0: [20.0, 0.0, 1]}))
    assert [each.collectives for each in view.look()] == [None, None]


def test_the_last_line_is_that_of_the_stream_that_was_written_last(tmp_path: Path) -> None:
    told(tmp_path, {**STARTED, "hosts": ["a"] * 11})
    folder = tmp_path / record.LOGS / "line-01" / "rank.03"
    folder.mkdir(parents=True)
    (folder / "stdout").write_bytes(b"x" * 10_000 + b"\n  50%\r 60%\n\n")
    (folder / "stderr").write_text("a warning\n")
    os.utime(folder / "stderr", (1, 1))
    view = RunView("1", tmp_path)
    assert [each.said for each in view.look()][2:4] == ["", "60%"]
    os.utime(folder / "stdout", (0, 0))
    assert view.look()[3].said == "a warning"


def test_what_ranks_tell_is_written_only_while_somebody_looks(tmp_path: Path) -> None:
    wanted = tmp_path / record.MONITORED
    report = LiveReport(wanted, tmp_path / record.LIVE, 1)
    assert not report._is_wanted()
    wanted.touch()
    assert report._is_wanted()
    past = time.time() - INTEREST_S - 1
    os.utime(wanted, (past, past))
    assert not report._is_wanted()


def test_a_row_says_what_is_known() -> None:
    unknown = replace(RANK, collectives=None, waiting=None, memory=None, said="")
    assert rows_of([RANK, unknown]) == [
        ("3.1", "2", "0", "a", "running", "4", "10.0", "75%", "3 MiB", "step 7"),
        ("3.1", "2", "0", "a", "running", "4", "", "", "", ""),
    ]


@pytest.mark.parametrize(
    ("shares", "states", "expected"),
    [
        ((0.9, 0.1, 0.8), "rrr", "run 3.1: the others wait for rank 1 on a"),
        ((0.5, 0.4, 0.5), "rrr", ""),
        ((None, None, None), "rrr", ""),
        ((0.9, 0.1, 0.8), "wrw", "run 3.1: 2 at the end of the line wait for rank 1 on a"),
    ],
)
def test_for_whom_the_others_wait(
    shares: tuple[float | None, ...], states: str, expected: str
) -> None:
    names = {"r": "running", "w": "waiting"}
    views = [
        replace(RANK, rank=rank, waiting=share, state=names[state])
        for rank, (share, state) in enumerate(zip(shares, states, strict=True))
    ]
    assert slowest(views) == expected


def test_a_token_is_private_and_never_empty(tmp_path: Path) -> None:
    token = token_in(tmp_path)
    path = tmp_path / TOKEN
    assert (len(token), path.stat().st_mode & 0o777) == (64, 0o600)
    assert token_in(tmp_path) == token
    for damaged in (b"", token[:-1].encode(), b"\xff" * 64):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="has no token: remove it"):
            token_in(tmp_path)


def test_the_text_for_prometheus() -> None:
    text = exposition(3, [replace(RANK, host='a"b\\', memory=None)])
    labels = r'{experiment="3",run="3.1",rank="0",host="a\"b\\"}'
    assert f"horovod_rank_running{labels} 1\n" in text
    assert f"horovod_rank_waiting_ratio{labels} 0.75\n" in text
    assert "horovod_rank_memory_bytes{" not in text
    assert text.count("# TYPE") == 6
