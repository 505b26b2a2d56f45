"""The table of docs/failures.md in PyTorch, TensorFlow and Keras.

tests/jax and tests/mxnet hold those of JAX and MXNet.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher import launched

sys.path.append(str(Path(__file__).resolve().parent.parent / "contract"))

from what_you_see import JOBS, RANK, VARIABLES, check, rows_of_page

DEADLINE_S = 180.0


def test_each_row_has_a_case() -> None:
    assert sorted(rows_of_page()) == sorted(row for rows in JOBS.values() for row in rows)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras"])
def test_what_you_see(framework: str, job: str) -> None:
    pytest.importorskip(framework)
    words = [sys.executable, str(RANK), framework, job]
    with launched("-np", "2", *words, **VARIABLES) as launcher:
        launcher.wait(DEADLINE_S)
    check(framework, job, "\n".join(launcher.lines["stdout"]), launcher.stderr)
