"""Completion of the command line: what a real bash offers, and what each script knows."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from horovod.runner.cli.command import main
from horovod.runner.cli.options import SHELLS, make_parser

if TYPE_CHECKING:
    from pathlib import Path

# As readline does it, with the words cut at '=' and ':'.
COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_horovodrun
((${#COMPREPLY[@]} == 0)) || printf '%s\\n' "${COMPREPLY[@]}"
"""
CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    found = {}
    for shell in SHELLS:
        assert main(["--print-completion", shell], {}) == 0
        found[shell] = tmp_path / shell
        found[shell].write_text(capsys.readouterr().out)
    return found


def offered(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", str(script), "horovodrun", *words],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_completes_what_was_begun(scripts: dict[str, Path]) -> None:
    bash = scripts["bash"]
    timeline = ["--timeline-filename", "--timeline-mark-cycles"]
    assert offered(bash, "--tim") == timeline
    assert offered(bash, "-np", "2", "--verbose", "--tim") == timeline
    assert offered(bash, "-H", "a", ":", "1,b", ":", "2", "--tim") == timeline
    assert offered(bash, "--grace", "=", "5", "--tim") == timeline
    assert offered(bash, "--log-level", "W") == ["WARNING"]
    assert offered(bash, "--log-level", "=", "de") == ["DEBUG"]
    assert offered(bash, "--print-completion", "") == list(SHELLS)
    assert offered(bash, "--config-file", "ba") == ["bash"]
    assert offered(bash, "--grace", "") == []
    assert offered(bash, "doct") == ["doctor"]
    assert offered(bash, "report-i") == ["report-issue"]


def test_bash_leaves_the_command_alone(scripts: dict[str, Path]) -> None:
    bash = scripts["bash"]
    (bash.parent / "my train.py").touch()
    assert "python3" in offered(bash, "-np", "2", "python")
    assert "python3" in offered(bash, "--", "python")
    assert offered(bash, "-np", "2", "python", "my") == ["my train.py"]
    assert offered(bash, "-np", "2", "python", "my train.py", "--tim") == []
    assert offered(bash, "--", "--tim") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_knows_every_option_that_is_shown(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    for action in make_parser()._actions:
        for name in action.option_strings if action.help is not argparse.SUPPRESS else ():
            assert (name if shell != "fish" else f" {name.lstrip('-')} ") in text, name


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_can_read_its_script(shell: str, scripts: dict[str, Path]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([*CHECKS[shell], str(scripts[shell])], check=True)


def test_another_shell_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "tcsh"], {}) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
