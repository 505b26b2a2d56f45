"""The timeline of real jobs of two ranks: what is in the file, and when it can be read."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from launcher import launched

import horovod
import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 60.0
# Written every 100 ms; the rest is for a busy machine.
VISIBLE_S = 20.0

Events = list[dict[str, Any]]


def read(path: Path) -> Events:
    """The events of a complete file."""
    events: Events = json.loads(path.read_text())
    return events


def read_what_is_there(path: Path) -> Events:
    """The events of a file whose writer may be amid an append, as Perfetto and Chrome read it."""
    text = path.read_text(errors="replace") if path.exists() else ""
    for end in ("", "]", "\n]"):
        try:
            events: Events = json.loads(text + end)
        except ValueError:
            continue
        return events
    whole_lines = text.rpartition("},")[0]
    return json.loads(whole_lines + "}]") if whole_lines else []


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline_s, f"no {what} within {timeout_s} s"
        threading.Event().wait(0.01)
    return result


def tensor_names(events: Events) -> set[str]:
    return {e["args"]["name"] for e in events if e.get("name") == "thread_name"}


def spans(events: Events) -> dict[tuple[str, int], list[tuple[str, float, float]]]:
    """By tensor and rank what was done, with begin and end in µs, in the order of the ends."""
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    open_ones: dict[tuple[int, int], list[tuple[str, float]]] = defaultdict(list)
    found: dict[tuple[str, int], list[tuple[str, float, float]]] = defaultdict(list)
    for event in events:
        line = (event["pid"], event.get("tid", 0))
        if event["ph"] == "B":
            open_ones[line].append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            name, began = open_ones[line].pop()
            found[names[line[1]], line[0]].append((name, began, event["ts"]))
    assert not any(open_ones.values()), "everything that begins ends"
    return found


def _reduce_and_gather() -> None:
    torch.set_num_threads(1)
    hvd.init()
    # What is submitted before rank 0's word has come has no beginning in the file.
    hvd.barrier()
    for number in range(20):
        hvd.allreduce(torch.ones(4), name=f"small{number}")
        hvd.allreduce(torch.ones(300_000), name=f"large{number}")
    for _ in range(3):
        hvd.allreduce(torch.ones(2, 3), name="test_allreduce")
    hvd.allgather(torch.ones(2), name="rows")
    hvd.broadcast(torch.ones(2), 0, name="root")
    hvd.alltoall(torch.ones(2), name="blocks")
    hvd.reducescatter(torch.ones(2), name="own")
    hvd.allreduce(torch.ones(2), op=hvd.Adasum, name="steps")
    try:
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="wrong")
    except hvd.HorovodInternalError:
        hvd.shutdown()


def test_all_ranks_are_in_one_file_on_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timeline.json"
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
    before_us = time.time() * 1e6
    horovod.run(_reduce_and_gather, num_proc=2)
    events = read(path)

    assert events[0]["name"] == "process_name"
    started_us = events[0]["args"]["start_time_since_epoch_in_micros"]
    assert before_us < started_us < time.time() * 1e6
    processes = {e["pid"]: e["args"].get("name", "") for e in events[1:] if e["ph"] == "M"}
    assert sorted(processes) == [0, 1]
    names = {e["name"] for e in events if "name" in e}
    assert {"NEGOTIATE_ALLREDUCE", "CYCLE_START", "ADASUM", "ERROR", "0", "1"} <= names
    done = spans(events)
    for tensor, phase in (
        ("allreduce.test_allreduce", "ALLREDUCE"),
        ("allgather.rows", "ALLGATHER"),
        ("broadcast.root", "BROADCAST"),
        ("alltoall.blocks", "ALLTOALL"),
        ("reducescatter.own", "REDUCESCATTER"),
        ("allreduce.wrong", "ERROR"),
    ):
        for rank in range(2):
            words = [name for name, _, _ in done[tensor, rank]]
            assert words[0] == f"NEGOTIATE_{tensor.partition('.')[0].upper()}"
            assert words[-1] == phase
    ends = [
        event
        for event in events
        if event.get("args", {}).get("shape") == "[2, 3]" and event["pid"] == 0
    ]
    assert [(end["ph"], end["args"]["dtype"]) for end in ends] == [("E", "float32")] * 3
    # The coordinator marks who announced a name, but for names that it remembers.
    (line,) = {(end["pid"], end["tid"]) for end in ends}
    marks = [e["name"] for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == line]
    assert sorted(marks) == ["0", "1"]

    # Nobody is done before everybody has begun, on the clock of the file.
    for number in range(20):
        for size in ("small", "large"):
            lines = [done[f"allreduce.{size}{number}", rank] for rank in range(2)]
            begins = [line[0][1] for line in lines]
            ends = [line[-1][2] for line in lines]
            assert max(begins) <= min(ends)
    # And while data moves, both ranks move it.
    for number in range(20):
        (_, began, ended), (_, other_began, other_ended) = (
            next(s for s in done[f"allreduce.large{number}", rank] if s[0] == "NATIVE_ALLREDUCE")
            for rank in range(2)
        )
        assert max(began, other_began) < min(ended, other_ended)


def _switch_files(folder: Path) -> float:
    """Several files in one job; returns how long it took until a record could be read."""

    def reduce(name: str) -> None:
        # The barrier orders this rank's wish behind rank 0's start or stop.
        hvd.barrier()
        hvd.allreduce(torch.ones(3), name=name)

    hvd.init()
    began_s = time.monotonic()
    reduce("before")
    hvd.start_timeline(str(folder / "first.json"))
    reduce("first")
    visible_s = 0.0
    if hvd.rank() == 0:
        first = folder / "first.json"
        began_s = time.monotonic()
        wait_until(
            lambda: "allreduce.first" in tensor_names(read_what_is_there(first)),
            VISIBLE_S,
            "record of a finished operation",
        )
        visible_s = time.monotonic() - began_s
    hvd.start_timeline(str(folder / "second.json"), mark_cycles=True)
    reduce("second")
    hvd.start_timeline(str(folder / "second.json"))
    reduce("second_goes_on")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        # Complete as soon as the call returns, while the job goes on.
        assert "allreduce.second_goes_on" in tensor_names(read(folder / "second.json"))
    reduce("between")
    hvd.stop_timeline()
    for number in range(3):
        hvd.start_timeline(str(folder / "again.json"), mark_cycles=number == 1)
        reduce(f"again{number}")
        hvd.stop_timeline()
        if hvd.rank() == 0:
            again = read(folder / "again.json")
            assert f"allreduce.again{number}" in tensor_names(again)
            assert f"allreduce.again{number - 1}" not in tensor_names(again)
            assert any(e.get("name") == "CYCLE_START" for e in again) == (number == 1)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="nowhere"):
            hvd.start_timeline(str(folder / "nowhere" / "x.json"))
    hvd.barrier()
    hvd.shutdown()
    return visible_s


@pytest.mark.parametrize("variable", ["", "DYNAMIC"])
def test_files_can_be_changed_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", variable)
    visible_s, _ = horovod.run(_switch_files, (tmp_path,), num_proc=2)
    assert visible_s < VISIBLE_S
    first, second = read(tmp_path / "first.json"), read(tmp_path / "second.json")
    assert tensor_names(first) >= {"allreduce.first"}
    assert not tensor_names(first) & {"allreduce.before", "allreduce.second"}
    assert tensor_names(second) >= {"allreduce.second", "allreduce.second_goes_on"}
    assert not tensor_names(second) & {"allreduce.first", "allreduce.between"}
    assert not any(e.get("name") == "CYCLE_START" for e in first)
    assert any(e.get("name") == "CYCLE_START" for e in second)
    for events in (first, second):
        assert {e["pid"] for e in events} == {0, 1}
    assert {path.name for path in tmp_path.iterdir()} == {"first.json", "second.json", "again.json"}


ENDLESS = """
import os, torch
import horovod.torch as hvd

torch.set_num_threads(1)
hvd.init()
print("rank", hvd.rank(), "pid", os.getpid(), flush=True)
for step in range(1_000_000):
    hvd.allreduce(torch.ones(1000), name=f"t{step % 50}")
"""


def test_what_was_written_before_a_kill_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    words = ("-np", "2", "--timeline-filename", str(path), sys.executable, "-c", ENDLESS)
    with launched(*words) as launcher:
        lines = launcher.wait_lines("stdout", r"rank 0 pid \d+")
        pid = int(lines[0].rsplit(" ", 1)[1])

        def complete() -> Events:
            """What a reader finds between two appends."""
            try:
                events = read(path)
            except (OSError, ValueError):
                return []
            return events if len(events) > 2000 else []

        seen = wait_until(complete, DEADLINE_S, "complete file of 2000 records")
        os.kill(pid, signal.SIGKILL)
        assert launcher.wait() == 128 + signal.SIGKILL
    left = read_what_is_there(path)
    assert left[: len(seen) - 1] == seen[:-1], "what was there stays"
    assert {e["pid"] for e in left} == {0, 1}
    # Rank 1 had to be told of the end by rank 0's death, and could not write it any more.
    assert len(left) >= len(seen)
