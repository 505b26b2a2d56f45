"""A command that hangs ends its test with what it printed."""

from __future__ import annotations

import os
import sys

import pytest
from limited import run_limited

HANGS = "echo began; exec tail -f /dev/null"


def test_a_command_that_hangs_is_ended_and_shown() -> None:
    with pytest.raises(AssertionError, match=r"(?s)no end within 3 s .*began"):
        run_limited(["sh", "-c", HANGS], os.environ, 3.0)


def test_a_command_that_ends_says_how() -> None:
    done = run_limited([sys.executable, "-c", "print(5); raise SystemExit(3)"], os.environ, 60.0)
    assert (done.returncode, done.stdout) == (3, "5\n")
