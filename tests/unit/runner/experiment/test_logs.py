"""What ranks wrote is printed behind who it is of."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment.logs import logs

if TYPE_CHECKING:
    from pathlib import Path


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
