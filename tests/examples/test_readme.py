"""README.md tells the truth: its programs run, and its error looks as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comment above it that says what it is for."""

    mark: str
    text: str


def blocks() -> list[Block]:
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"^<!-- (.*?) -->\n```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(mark, body) for mark, body in found]


def texts_of(mark: str) -> dict[str, str]:
    """The blocks of one kind, by what follows the kind in their mark."""
    return {
        block.mark.removeprefix(mark).strip(): block.text
        for block in blocks()
        if block.mark.startswith(mark)
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs of README."""
    for name, text in texts_of("file:").items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs one line of README with this Python."""
    words = command.split()
    prefix = [sys.executable if word == "python" else word for word in words]
    if words[0] == "horovodrun":
        prefix[:1] = [sys.executable, "-m", "horovod.runner.cli"]
    return subprocess.run(
        prefix, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def commands() -> list[str]:
    (text,) = texts_of("run").values()
    return text.splitlines()


@pytest.mark.parametrize("command", commands())
def test_the_training_runs(command: str, folder: Path) -> None:
    result = run(command, folder)
    assert result.returncode == 0, result.stderr
    words = command.split()
    size = int(words[words.index("-np") + 1]) if "-np" in words else 1
    losses = re.findall(r"rank (\d) of (\d): loss ([\d.e-]+)", result.stdout)
    assert sorted(losses)[0][:2] == ("0", str(size))
    assert len(losses) == size
    assert all(float(loss) < 0.1 for _, _, loss in losses)


def without_process_ids(text: str) -> str:
    return re.sub(r"\((\S+):\d+\)", r"(\1)", text)


def test_the_error_looks_as_printed(folder: Path) -> None:
    ((command, expected),) = texts_of("output of:").items()
    result = run(command, folder)
    assert result.returncode != 0
    lines = [line.split(">:", 1)[-1] for line in result.stderr.splitlines()]
    printed = without_process_ids("\n".join(lines)).replace(f"{folder}/", "")
    assert without_process_ids(expected.rstrip()) in printed


def test_the_make_targets_exist() -> None:
    readme = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", readme, re.MULTILINE))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
