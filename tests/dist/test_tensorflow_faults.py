"""A rank that dies is an error of TensorFlow's on the others, and names the rank.

test_what_you_see.py has other ways to die, and other modes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launcher import launched

pytest.importorskip("tensorflow")

FAULTY_RANK = str(Path(__file__).with_name("tensorflow_faulty_rank.py"))
# TensorFlow is loaded meanwhile, by two processes at once.
DEADLINE_S = 120.0


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        ("function", "kill"),
        ("session", "kill"),
        ("eager", "exit_early"),
    ],
)
def test_a_rank_that_dies_is_named(mode: str, fault: str) -> None:
    words = [sys.executable, FAULTY_RANK, mode, fault]
    with launched("-np", "2", *words, TF_CPP_MIN_LOG_LEVEL="2") as launcher:
        launcher.wait(DEADLINE_S)
    output = "\n".join(launcher.lines["stdout"])
    planted = re.search(r"\[1\]<stdout>:fault ([\d.]+)", output)
    error = re.search(r"\[0\]<stdout>:error ([\d.]+) (.*)", output)
    assert planted, launcher.lines
    assert error, launcher.lines
    assert float(error[1]) - float(planted[1]) < 5.0
    assert error[2].startswith("UnknownError"), error[2]
    assert re.search(r"rank 1 \(\S+:\d+\)", error[2]), error[2]
    assert launcher.process.returncode != 0
