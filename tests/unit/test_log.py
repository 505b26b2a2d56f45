"""The logger ``horovod``: who hears what, in processes of their own, as the settings are global."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from horovod._base.log import LEVELS

SCRIPT = """
import logging, sys
{setup}
from horovod._rank import context
context.init()
logger = logging.getLogger("horovod.some.subject")
for level in (5, 10, 20, 30, 40, 50):
    logger.log(level, "level %d", level)
"""
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


def stderr_of(setup: str = "", **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(setup=setup)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def numbers(lines: list[str]) -> list[int]:
    return [int(line.rpartition("level ")[2]) for line in lines if " level " in line]


def test_each_level_of_the_setting_has_its_own() -> None:
    assert len({*LEVELS.values()}) == len(LEVELS)
    assert sorted(LEVELS.values()) == list(LEVELS.values())


@pytest.mark.parametrize("level", ["", "trace", "DEBUG", "info", "error", "fatal"])
def test_the_setting_says_from_which_level_on(level: str) -> None:
    heard = numbers(stderr_of(HOROVOD_LOG_LEVEL=level))
    least = LEVELS[level.lower() or "warning"]
    assert heard == [each for each in (5, 10, 20, 30, 40, 50) if each >= least]


def test_without_a_handler_lines_look_as_those_of_the_engine() -> None:
    misspelt = {"HOROVOD_FUSION_TRESHOLD": "1"}
    first, *lines = stderr_of(**misspelt)
    assert re.match(rf"\[{TIME}horovod warning\] .*did you mean HOROVOD_FUSION_THRESHOLD", first)
    assert [line.partition("horovod ")[2] for line in lines] == [
        "warning] level 30",
        "error] level 40",
        "fatal] level 50",
    ]
    first, *lines = stderr_of(HOROVOD_LOG_HIDE_TIME="1", **misspelt)
    assert first.startswith("[horovod warning] ")
    assert lines[0] == "[horovod warning] level 30"


@pytest.mark.parametrize(
    "setup",
    [
        "logging.basicConfig(format='mine: %(name)s: %(message)s')",
        "handler = logging.StreamHandler()\n"
        "handler.setFormatter(logging.Formatter('mine: %(name)s: %(message)s'))\n"
        "logging.getLogger('horovod').addHandler(handler)",
    ],
    ids=["root", "horovod"],
)
def test_an_application_with_handlers_hears_everything_once(setup: str) -> None:
    assert stderr_of(setup) == [f"mine: horovod.some.subject: level {n}" for n in (30, 40, 50)]


def test_an_application_may_choose_the_level_itself() -> None:
    lines = stderr_of("logging.basicConfig(level='INFO', format='mine: %(message)s')")
    assert re.match(r"mine: rank 0 of 1 runs on \S+ as process \d+", lines[0])
    assert numbers(lines) == [20, 30, 40, 50]
    silent = stderr_of("logging.getLogger('horovod').addHandler(logging.NullHandler())")
    assert silent == []


def test_a_process_without_stderr_goes_on() -> None:
    assert stderr_of("sys.stderr = None") == []
