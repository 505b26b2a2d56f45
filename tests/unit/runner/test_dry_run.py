from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from horovod.runner.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def dry_run(line: str, capsys: pytest.CaptureFixture[str], **environ: str) -> list[str]:
    assert main([*line.split(), "--dry-run", "python", "train.py", "a b"], environ) == 0
    return capsys.readouterr().out.splitlines()


def test_it_tells_what_would_run_on_each_host(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry_run("-np 3 -H a:2,b:1 --cache-capacity 5", capsys, PATH="/bin")
    assert lines[0] == "3 ranks on 2 hosts"
    assert [line for line in lines if line.startswith("host ")] == ["host a", "host b"]
    assert lines.count("  command    python train.py 'a b'") == 2
    assert lines.count("  variable   HOROVOD_CACHE_CAPACITY=5") == 2
    assert lines.count("  and 1 other variables of this environment") == 2
    ranks = [line.split() for line in lines if line.startswith("  rank ")]
    assert [(words[1], "HOROVOD_HOSTNAME=b" in words) for words in ranks] == [
        ("0", False),
        ("1", False),
        ("2", True),
    ]


def test_no_host_is_looked_up_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", None)
    monkeypatch.setattr("subprocess.Popen", None)
    assert "1 rank on 1 host" in dry_run("-np 1 -H nowhere.invalid:1", capsys)


@pytest.mark.parametrize(
    "name", ["_HOROVOD_SECRET_KEY", "HOROVOD_MY_TOKEN", "AWS_KEY", "MINE", "NCCL_PASSWORD"]
)
def test_nothing_confidential_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(dry_run("-np 1", capsys, **{name: "hunter2"}))
    assert "hunter2" not in text
    if name in ("HOROVOD_MY_TOKEN", "NCCL_PASSWORD"):
        assert f"{name}=<not shown>" in text


def test_a_command_can_be_copied_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    (variable,) = [
        line for line in dry_run("-np 1 --timeline-filename=x;y", capsys) if "TIMELINE" in line
    ]
    assert variable.endswith("HOROVOD_TIMELINE='x;y'")


def test_faults_are_found_in_a_dry_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-np", "3", "-H", "a:2", "--dry-run", "x"], {}) == 2
    assert re.search(r"3 ranks were requested, but only 2 slots", capsys.readouterr().err)
