"""What jitted programs hear when an operation fails, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_dead_rank_is_named_in_jitted_programs(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_faulty_rank.py", "dies_in_a_jitted_step")
    assert said_by(job, 0) == ["told"], job.stdout + job.stderr


def test_ctrl_c_ends_a_wait(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_faulty_rank.py", "is_interrupted_while_it_waits")
    assert said_by(job, 0) == ["interrupted"], job.stdout + job.stderr


def test_a_process_ends_with_work_in_flight(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_faulty_rank.py", "leaves_work_behind")
    assert said_by(job, 0) == said_by(job, 1) == ["left"], job.stdout + job.stderr


def test_compiled_programs_outlive_a_job(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_faulty_rank.py", "comes_back_after_a_job")
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == ["came back"], job.stdout + job.stderr
