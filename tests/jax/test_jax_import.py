"""What importing horovod.jax says where JAX is not there or too old, and what it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("before", "error", "sentence"),
    [
        (
            "sys.modules['jax'] = None",
            "ModuleNotFoundError",
            'horovod.jax needs JAX 0.6 or newer: pip install "jax>=0.6"',
        ),
        (
            "import jax; jax.__version__ = '0.5.3'",
            "HorovodVersionMismatchError",
            "jax 0.5.3 is installed, but this Horovod needs jax 0.6 or newer",
        ),
    ],
)
def test_one_sentence_says_what_to_install(
    before: str, error: str, sentence: str, run_python: Callable[..., Any]
) -> None:
    job = run_python("-c", f"import sys; import horovod; {before}; import horovod.jax")
    *_, last = job.stderr.splitlines()
    assert error in last
    assert sentence in last


def test_the_import_loads_no_other_framework_and_starts_no_backend(
    run_python: Callable[..., Any],
) -> None:
    job = run_python(
        "-c",
        "import horovod.jax, sys; from jax._src import xla_bridge;"
        "others = {'torch', 'pydantic', 'optax'} & {*sys.modules};"
        "print(others, xla_bridge.backends_are_initialized())",
    )
    assert job.stdout.strip() == "set() False", job.stdout + job.stderr


def test_the_command_line_knows_jax(run_python: Callable[..., Any]) -> None:
    job = run_python("-m", "horovod.runner.cli", "--check-build")
    assert "[X] JAX 0." in job.stdout, job.stdout + job.stderr


def test_another_device_is_refused_with_the_way_out(run_python: Callable[..., Any]) -> None:
    program = (
        "import jax.export, horovod.jax as hvd; hvd.init();"
        "jax.export.export(jax.jit(hvd.allreduce), platforms=['tpu'])(1.0)"
    )
    job = run_python("-c", program)
    assert "lax.psum on TPU" in job.stderr, job.stderr
