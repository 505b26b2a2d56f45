"""The destinations of hvd.log that need no library, and their failures."""

from __future__ import annotations

import json
import logging
import math
import resource
import signal
from typing import TYPE_CHECKING

import pytest

from horovod._settings.destinations import Destination
from horovod._train.logged.json_lines import JsonLines
from horovod._train.logged.outlets import Outlets
from horovod._train.logged.record import Run
from horovod._train.logged.sink import Guarded, library
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN, OTHER = Run(1_795_676_176, 1), Run(1_795_676_176, 2)


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_say_run_step_and_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    sink = JsonLines(Destination("jsonl", str(path)), RUN)
    sink.write(3, {"loss": 0.5, "nan": float("nan")}, 12.3456)
    (line,) = map(json.loads, path.read_text().splitlines())  # before the end, too
    assert (line["run"], line["step"], line["time"]) == (RUN.name, 3, 12.346)
    assert line["values"]["loss"] == 0.5
    assert math.isnan(line["values"]["nan"])
    sink.close(failed=False)


def test_job_goes_on_in_its_file_and_in_no_other(tmp_path: Path) -> None:
    destination = Destination("jsonl", str(tmp_path / "metrics.jsonl"))
    for step, run in enumerate((RUN, RUN)):
        sink = JsonLines(destination, run)
        sink.write(step, {"loss": 1.0}, 0.0)
        sink.close(failed=False)
    with pytest.raises(UsageError, match=r"metrics\.jsonl exists, and is not of this job"):
        JsonLines(destination, OTHER)
    assert steps_of(tmp_path / "metrics.jsonl") == [0, 1]


def test_each_job_has_a_file_of_its_own(tmp_path: Path) -> None:
    destination = Destination("jsonl", str(tmp_path / "metrics-{run}.jsonl"))
    for run in (RUN, OTHER):
        JsonLines(destination, run).write(0, {"loss": 1.0}, 0.0)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"metrics-{RUN.name}.jsonl",
        f"metrics-{OTHER.name}.jsonl",
    }


def test_two_jobs_at_once_do_not_share_a_file(tmp_path: Path) -> None:
    """The second one is refused even before the first has written."""
    destination = Destination("jsonl", str(tmp_path / "metrics.jsonl"))
    JsonLines(destination, RUN)
    with pytest.raises(UsageError, match="is not of this job"):
        JsonLines(destination, OTHER)


def test_a_file_without_lines_of_a_rank_0_that_is_gone_is_taken(tmp_path: Path) -> None:
    destination = Destination("jsonl", str(tmp_path / "metrics.jsonl"))
    first = JsonLines(destination, RUN)
    first.close(failed=True)
    second = JsonLines(destination, RUN)
    with pytest.raises(UsageError, match="is not of this job"):
        JsonLines(destination, RUN)  # while the second one is alive
    second.write(1, {"loss": 1.0}, 0.0)
    assert steps_of(tmp_path / "metrics.jsonl") == [1]


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of at most 200 bytes, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_full_disk_is_told_once_and_leaves_whole_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    destination = Destination("jsonl", str(path))
    sink = Guarded(JsonLines(destination, RUN), destination)
    for step in range(5):
        sink.write(step, {"loss": 1.0}, 0.0)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )  # somebody makes room
    sink.write(5, {"loss": 1.0}, 0.0)
    sink.close(failed=False)
    assert steps_of(path) == [0, 1, 5]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3, messages
    assert messages[0].startswith("hvd.log cannot write step 2 to jsonl:")
    assert f"File too large ({path}); training goes on" in messages[0]
    assert messages[2].startswith("3 records of hvd.log are missing in jsonl:")


def test_sink_that_works_again_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky:
        def write(self, step: int, values: object, at_s: float) -> None:
            if step in (1, 2):
                raise ConnectionError("no server\nsecond line")

        def close(self, *, failed: bool) -> None:
            raise ValueError

    sink = Guarded(Flaky(), Destination("mlflow", ""))
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            sink.write(step, {}, 0.0)
        sink.close(failed=False)
    first, again, finish, missing = [record.getMessage() for record in caplog.records]
    assert "cannot write step 1 to mlflow: ConnectionError: no server;" in first
    assert "from step 3 on" in again
    assert finish == "hvd.log cannot finish mlflow: ValueError"
    assert missing == "2 records of hvd.log are missing in mlflow"


def test_missing_library_is_named() -> None:
    with pytest.raises(UsageError, match="names wandb, but no_such_library is not installed"):
        library("no_such_library", Destination("wandb", ""))


def test_outlets_open_all_or_none(tmp_path: Path) -> None:
    outlets = Outlets()
    (tmp_path / "b.jsonl").write_text("notes\n")
    with pytest.raises(UsageError, match=r"b\.jsonl exists"):
        outlets.open(f"jsonl:{tmp_path}/a.jsonl,jsonl:{tmp_path}/b.jsonl", RUN)
    assert not outlets.are_open
    outlets.open(f"jsonl:{tmp_path}/c.jsonl", RUN)
    outlets.write(1, {"loss": 1.0}, 0.0)
    outlets.close(failed=False)
    assert steps_of(tmp_path / "c.jsonl") == [1]


def test_no_destination_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    outlets = Outlets()
    for _ in range(2):
        outlets.open("", RUN)
    assert [record.getMessage()[:22] for record in caplog.records] == ["hvd.log writes nowhere"]
