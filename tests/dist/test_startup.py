"""Real ranks tell the launcher how their start went."""

from __future__ import annotations

import io
import os
import re
import sys
import time

from launcher import environment

from horovod.runner.output.console import Console
from horovod.runner.placing.hosts import Host, assign
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting.launch import start as launch
from horovod.runner.starting.requests import Caller, FixedRequest, LaunchOptions
from horovod.runner.supervision.startup import StartWatch

SECONDS = r"(\d+\.\d) s"
LAST = r"\(rank [01] on localhost was last; median \d+\.\d s\)"


def start(code: str, slow_s: float) -> list[str]:
    """Runs two ranks; returns what was said about their start."""
    lines: list[str] = []
    watch = StartWatch(
        ["localhost", "localhost"], lines.append, time.monotonic(), slow_s, verbose=True
    )
    settings = JobSettings((sys.executable, "-c", code), os.getcwd(), environment())
    text = io.StringIO()
    with Console(text, text) as console:
        slots = assign([Host("localhost", None)], 2)
        caller = Caller(console, store_user=watch.using)
        outcome = launch(FixedRequest(settings, LaunchOptions(), slots), caller)
    assert outcome.exit_code == 0, text.getvalue()
    return lines


def test_the_phases_of_a_start_are_told() -> None:
    began_s = time.monotonic()
    lines = start("from horovod._rank.context import init; init()", slow_s=0.0)
    pattern = (
        rf"starting took {SECONDS}: spawn {SECONDS} {LAST}, import {SECONDS} {LAST}, "
        rf"connect {SECONDS}"
    )
    found = re.fullmatch(pattern, lines[-1])
    assert found, lines
    took_s, spawn_s, import_s, connect_s = map(float, found.groups())
    assert took_s <= time.monotonic() - began_s + 0.1
    assert 0 < import_s < took_s
    assert spawn_s + connect_s < took_s


def test_a_program_without_init_is_not_commented() -> None:
    assert start("pass", slow_s=0.0) == []
