"""What ranks wrote is read once, and printed in whole lines."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment.logs import _NewLines, logs

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_are_printed_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    lines = _NewLines(path, "> ")

    def after(data: bytes, *, is_last: bool = False) -> str:
        with path.open("ab") as file:
            file.write(data)
        stdout = io.StringIO()
        lines.copy(stdout, is_last=is_last)
        return stdout.getvalue()

    assert after(b"") == ""
    assert after(b"one\n\ntw") == "> one\n> \n"
    assert after("ö\r2".encode()) == ""
    assert after(b"\nthree\n\xff") == "> twö\r2\n> three\n"
    assert after(b"", is_last=True) == "> \ufffd\n"
    path.write_bytes(b"")
    assert after(b"anew\n") == "> anew\n"


def test_a_long_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"x" * (5 << 20))
    lines, stdout = _NewLines(path, ""), io.StringIO()
    for _ in range(1000):
        lines.copy(stdout, is_last=False)
    assert stdout.getvalue() == ""
    lines.copy(stdout, is_last=True)
    assert stdout.getvalue() == "x" * (5 << 20) + "\n"


def test_runs_are_named_unless_one_is_asked_for(tmp_path: Path) -> None:
    for run in (1, 2):
        folder = tmp_path / "3" / str(run) / "logs" / "line-01" / "rank.0"
        folder.mkdir(parents=True)
        (folder / "stdout").write_text(f"of {run}\n")
    known = {"runs": [{"n": "1"}, {"n": "2"}], "host": "elsewhere", "pid": 1, "started": 0.0}
    (tmp_path / "3" / "experiment.json").write_text(json.dumps(known))

    def printed(*words: str) -> list[str]:
        stdout = io.StringIO()
        assert logs(tmp_path, words, stdout) == 0
        return stdout.getvalue().splitlines()

    both = [f"run 3.{run} line-01 rank.0 stdout: of {run}" for run in (1, 2)]
    assert printed() == printed("3") == both
    assert printed("3.2") == ["line-01 rank.0 stdout: of 2"]
    with pytest.raises(UsageError, match="has the runs 1 to 2, not 3"):
        printed("3.3")
