"""The variables of PyTorch in the job of a host, and the port that is kept for rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horovod.runner.placing.torch_environment import (
    rank_variables_of_user,
    warn_of_rank_variables,
    with_torch_variables,
    without_outer_place,
)
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def job(env: Mapping[str, str]) -> AgentJob:
    workers = tuple(
        WorkerJob(
            rank,
            rank,
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": "4",
                "HOROVOD_LOCAL_RANK": str(rank - 2),
                "HOROVOD_LOCAL_SIZE": "2",
            },
            ("true",),
        )
        for rank in (2, 3)
    )
    return AgentJob("host-1", "/", env, workers, b"s" * 32)


def seen(env: Mapping[str, str]) -> list[tuple[str | None, ...]]:
    """The variables of PyTorch that each worker gets."""
    told = with_torch_variables(job(env), "10.0.0.1", 4321)
    merged = [{**told.env, **worker.env} for worker in told.workers]
    return [tuple(variables.get(name) for name in NAMES) for variables in merged]


def test_each_rank_gets_its_place_and_the_address_of_rank_0() -> None:
    assert seen({}) == [
        ("2", "4", "0", "2", "10.0.0.1", "4321"),
        ("3", "4", "1", "2", "10.0.0.1", "4321"),
    ]


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_place_that_the_user_set_leaves_all_as_it_was(name: str) -> None:
    lines: list[str] = []
    assert seen({name: "9"})[0] == tuple("9" if each == name else None for each in NAMES)
    warn_of_rank_variables({name: "9"}, lines.append)
    assert lines[0].startswith(f"{name}=9 of this environment is passed to all ranks alike")


def test_an_address_that_the_user_set_stays() -> None:
    lines: list[str] = []
    warn_of_rank_variables({"MASTER_PORT": "1", "MASTER_ADDR": "a"}, lines.append)
    assert not lines
    assert seen({"MASTER_PORT": "1"})[0][4:] == ("10.0.0.1", "1")
    assert seen({"MASTER_ADDR": "a", "MASTER_PORT": ""})[0][4:] == ("a", "4321")


OF_OUTER_JOB = (
    {"HOROVOD_RANK": "1"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
)


@pytest.mark.parametrize("told", OF_OUTER_JOB)
def test_what_a_rank_of_another_job_inherited_is_not_the_users(told: Mapping[str, str]) -> None:
    outer = dict(zip(NAMES, ("1", "8", "1", "8", "127.0.0.1", "99"), strict=True)) | dict(told)
    assert not rank_variables_of_user(outer)
    assert seen(outer)[0] == ("2", "4", "0", "2", "10.0.0.1", "4321")
    assert without_outer_place(outer) == told


@pytest.mark.parametrize("env", [{"RANK": "7", "MASTER_PORT": "1"}, {"MASTER_PORT": "1"}])
def test_what_the_user_set_is_passed_to_an_elastic_job(env: Mapping[str, str]) -> None:
    assert without_outer_place(env) == env
