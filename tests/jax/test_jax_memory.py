"""What a step costs in page faults: memory of the last step serves the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = 1000  # 100 MB are 24,000 pages
ASKED = "from horovod.jax.memory import keep_freed_memory as keep; print(keep())"


def test_a_step_takes_the_memory_of_the_last_one(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_memory_rank.py")
    assert job.returncode == 0, job.stdout + job.stderr
    assert [int(line) < FEW for rank in (0, 1) for line in said_by(job, rank)] == [True, True], (
        job.stdout
    )


def test_who_sets_the_allocator_is_left_alone(run_python: Callable[..., Any]) -> None:
    assert run_python("-c", ASKED).stdout == "True\n"
    assert run_python("-c", ASKED, MALLOC_ARENA_MAX="4").stdout == "False\n"
