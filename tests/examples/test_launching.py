"""docs/launching.md tells the truth: what it shows runs, and its config file has every key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import horovod
from horovod.runner.config_file import read_config_file
from horovod.runner.flags import FLAGS
from horovod.settings import TABLE
from horovod.settings.setting import Status

pytest.importorskip("torch")

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "launching.md"
SOURCE = str(Path(horovod.__file__).resolve().parent.parent)
DEADLINE_S = 120.0


def blocks() -> list[tuple[str, str]]:
    """The fenced blocks that have a comment above them, with that comment."""
    text = DOCUMENT.read_text()
    return re.findall(r"^<!-- (.*?) -->\n```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for mark, body in blocks() if mark == "run" for line in body.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the document."""
    for mark, body in blocks():
        if mark.startswith("file: "):
            (tmp_path / mark.removeprefix("file: ")).write_text(body)
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable if word == "python" else word for word in command.split()]
    if words[0] == "horovodrun":
        words[:1] = [sys.executable, "-m", "horovod.runner.cli"]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("command", commands())
def test_a_command_runs(command: str, folder: Path) -> None:
    result = run(command, folder)
    assert result.returncode == 0, result.stderr
    if command.endswith("hello.py") and "--dry-run" not in command:
        assert sorted(re.findall(r"rank \d of 2: 2", result.stdout)) == [
            "rank 0 of 2: 2",
            "rank 1 of 2: 2",
        ]
    else:
        assert result.stdout


def test_the_output_looks_as_printed(folder: Path) -> None:
    printed = {
        mark.removeprefix("output of: "): body for mark, body in blocks() if "output of" in mark
    }
    assert printed
    for command, body in printed.items():
        assert run(command, folder).stdout == body


def test_the_function_returns_the_sum_of_all_ranks(folder: Path) -> None:
    assert run("python call.py", folder).stdout == "[3.0, 3.0]\n"


def test_the_config_file_has_every_key_that_is_not_deprecated(folder: Path) -> None:
    config = read_config_file(str(folder / "horovod.yaml"))
    current = [flag for flag in FLAGS if TABLE[flag.variable].status is not Status.DEPRECATED]
    assert config.values.keys() == {flag.attribute for flag in current}
    assert config.controller == "gloo"
    assert not config.advice
