"""What importing horovod.mxnet says where MXNet 1.9.1 or its NumPy is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ADVICE = 'Python 3.11 or older: pip install "mxnet==1.9.1" "numpy==1.23.5"'


@pytest.mark.parametrize(
    ("before", "error", "sentence"),
    [
        ("sys.modules['mxnet'] = None", "ModuleNotFoundError", ADVICE),
        (
            "import mxnet; mxnet.__version__ = '2.0.0b1'",
            "HorovodVersionMismatchError",
            "mxnet 2.0.0b1 is installed, but this Horovod needs mxnet 1.9.1",
        ),
        (
            "import importlib.metadata as m; m.version = lambda name: '1.24.0'",
            "ImportError",
            f"with NumPy 1.24.0: install it in an environment of its own with {ADVICE}",
        ),
    ],
)
def test_one_sentence_says_what_to_install(
    before: str, error: str, sentence: str, run_python: Callable[..., Any]
) -> None:
    job = run_python("-c", f"import sys; import horovod; {before}; import horovod.mxnet")
    *_, last = job.stderr.splitlines()
    assert error in last
    assert sentence in last


def test_the_command_line_knows_mxnet(run_python: Callable[..., Any]) -> None:
    job = run_python("-m", "horovod.runner.cli", "--check-build")
    assert "[X] MXNet 1.9.1" in job.stdout, job.stdout + job.stderr


def test_the_rank_loads_no_other_framework(run_python: Callable[..., Any]) -> None:
    job = run_python(
        "-c", "import horovod.mxnet, sys; print({'torch', 'pydantic'} & {*sys.modules})"
    )
    assert job.stdout.strip() == "set()", job.stdout + job.stderr
