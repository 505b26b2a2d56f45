"""The way of a command line through the launcher is short, from its words to the first agent."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import horovod
from horovod.runner.cli.command import main
from horovod.runner.cli.options import CommandLine
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting.requests import JobRequest

if TYPE_CHECKING:
    from types import FrameType

ROOT = f"{Path(horovod.__file__).parent}/"
WORDS = ["-np", "2", "no-program"]
# Methods of the dataclasses, which elsewhere are generated.
METHODS = "_base/fast_dataclass.py"
# What a command line becomes.
FOLLOWED = (argparse.Namespace, CommandLine, JobRequest, JobSettings)


class Walk:
    """Counts how often a call from another module hands over the command line, or what it became.

    Attributes:
        entries: by module.
    """

    def __init__(self) -> None:
        self.entries: Counter[str] = Counter()

    def on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        """Look at a call; see :func:`sys.setprofile`."""
        code, caller = frame.f_code, frame.f_back
        if event != "call" or caller is None or not code.co_filename.startswith(ROOT):
            return
        values = [frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]]
        handed = any(value is WORDS or isinstance(value, FOLLOWED) for value in values)
        module = code.co_filename.removeprefix(ROOT)
        if handed and caller.f_code.co_filename != code.co_filename and module != METHODS:
            self.entries[module] += 1


class Started(Exception):
    """The first agent would start now."""


def start_agent(environ: Any, stdin: int = -1) -> Any:
    sys.setprofile(None)
    raise Started


def follow(walk: Walk) -> None:
    sys.setprofile(walk.on_event)
    try:
        main(WORDS, {"PATH": "/bin"})
    finally:
        sys.setprofile(None)


def test_a_command_line_passes_few_modules_on_its_way_to_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("horovod.runner.starting.local.start_agent", start_agent)
    walk = Walk()
    with pytest.raises(Started):
        follow(walk)
    assert "runner/starting/launch.py" in walk.entries
    assert len(walk.entries) <= 15, walk.entries
    assert max(walk.entries.values()) <= 3, walk.entries
