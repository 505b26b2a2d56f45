"""How the cores of a host are divided among its ranks."""

from __future__ import annotations

import pytest

from horovod.runner.placing.threads import describe, thread_variables, threads_of_rank


@pytest.mark.parametrize(
    ("num_cores", "num_ranks", "threads"),
    [(2, 2, 1), (8, 2, 4), (8, 3, 2), (2, 4, 1), (1, 1, 1)],
)
def test_each_rank_gets_its_share_and_at_least_one(
    num_cores: int, num_ranks: int, threads: int
) -> None:
    assert threads_of_rank(num_cores, num_ranks) == threads


def test_all_pools_get_the_share() -> None:
    assert thread_variables({}, num_cores=8, num_ranks=2) == {
        "OMP_NUM_THREADS": "4",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
        "PJRT_NPROC": "4",
    }


def test_tensorflow_runs_two_operations_at_a_time_at_least() -> None:
    variables = thread_variables({}, num_cores=2, num_ranks=2)
    assert variables["TF_NUM_INTEROP_THREADS"] == "2"
    assert variables["TF_NUM_INTRAOP_THREADS"] == "1"


def test_what_the_user_set_stays() -> None:
    environ = {"OMP_NUM_THREADS": "3", "NPROC": "5", "TF_NUM_INTEROP_THREADS": ""}
    assert thread_variables(environ, num_cores=8, num_ranks=2) == {
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
    }


def test_a_variable_of_mkl_counts_for_mkl_alone() -> None:
    """It is stronger than OpenMP's there, and PyTorch follows it."""
    variables = thread_variables({"MKL_NUM_THREADS": "3"}, num_cores=8, num_ranks=2)
    assert variables["OMP_NUM_THREADS"] == "4"
    assert "MKL_NUM_THREADS" not in variables


def test_a_rank_that_has_the_host_for_itself_is_left_alone() -> None:
    assert thread_variables({}, num_cores=8, num_ranks=1) == {}


def test_the_line_for_the_user() -> None:
    variables = thread_variables(
        dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC"), "1"), 1, 2
    )
    assert describe(variables, 1, 2) == "2 ranks share 1 core, so each gets OMP_NUM_THREADS=1"
    assert describe({}, 1, 2) == ""
