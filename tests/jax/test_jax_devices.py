"""On which devices collectives run: copies of arrays on GPUs, several devices of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

WARNING = "docs/jax.md, GPUs"
COPIED = (
    "every_operation_has_its_tangent_and_its_adjoint",
    "uneven_parts_have_their_adjoints",
    "second_derivatives_and_programs_of_all_kinds",
    "a_batch_is_one_operation",
    "functions_of_all_ranks_equal_one_process",
    "bfloat16_and_compression",
    "a_tree_of_all_dtypes_is_one_operation",
    "independent_operations_run_in_the_order_of_the_program",
    "what_cannot_be_in_a_program_is_refused",
    "state_comes_from_the_root",
    "a_weight_may_be_computed",
    "a_failed_program_says_what_differs_and_others_go_on",
)
SEVERAL = (
    "arrays_over_several_devices_come_back_as_they_were",
    "programs_over_several_devices_are_refused",
)
PROGRAM_FOR_GPUS = """
import jax, jax._src.interpreters.mlir as lowering, horovod.jax as hvd
lowering.ModuleContext.get_backend = lambda *_, **__: None  # there is none
hvd.init()
two = lambda x: hvd.allreduce(x) + hvd.allreduce(x * 2)
for platform in ("cuda", "rocm"):
    lowered = jax.jit(two).trace(jax.numpy.ones(2)).lower(lowering_platforms=(platform,))
    print(lowered.as_text().count("@xla_ffi_python_gpu_callback"))
"""
WAYS = """
from horovod.jax.devices import TransferMode, transfer_mode_on
print(*(transfer_mode_on(each).name for each in ("cpu", "gpu", "cuda", "rocm")))
transfer_mode_on("tpu")
"""


def test_the_way_of_a_platform(run_python: Callable[..., Any]) -> None:
    job = run_python("-c", WAYS)
    assert job.stdout.split() == ["DIRECT", *["HOST_COPY"] * 3], job.stderr
    assert "jax.distributed and lax.psum on TPU" in job.stderr


def test_programs_for_gpus_call_back_and_one_warning_says_so(
    run_python: Callable[..., Any],
) -> None:
    """There is no GPU: they are lowered, not run."""
    job = run_python("-c", PROGRAM_FOR_GPUS)
    assert job.stdout.split() == ["2", "2"], job.stdout + job.stderr
    assert job.stderr.count(WARNING) == 1, job.stderr


def test_copies_are_as_good_as_the_arrays(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_cases_rank.py", "copied", *COPIED)
    assert job.returncode == 0, job.stdout + job.stderr
    assert {*said_by(job, 0)} == {*said_by(job, 1)} == {*COPIED}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dies_in_a_jitted_step", "told"),
        ("comes_back_after_a_job", "came back"),
        ("is_interrupted_in_a_callback", "interrupted"),
    ],
)
def test_programs_on_copies_hear_of_faults(
    fault: str, told: str, run_ranks: Callable[..., Any]
) -> None:
    job = run_ranks(2, "jax_faulty_rank.py", fault, "copied")
    assert said_by(job, 0) == [told], job.stdout + job.stderr


def test_a_rank_with_several_devices(run_ranks: Callable[..., Any]) -> None:
    devices = "--xla_force_host_platform_device_count=2"
    job = run_ranks(2, "jax_devices_rank.py", XLA_FLAGS=devices)
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == [*SEVERAL]
