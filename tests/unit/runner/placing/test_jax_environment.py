"""The variables of JAX and Keras in the job of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horovod._settings.jax_variables import JaxProcess, jax_process_in
from horovod.runner.placing.jax_environment import with_framework_variables
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = (
    "JAX_COORDINATOR_ADDRESS",
    "KERAS_DISTRIBUTION_JOB_ADDRESSES",
    "KERAS_DISTRIBUTION_NUM_PROCESSES",
    "KERAS_DISTRIBUTION_PROCESS_ID",
)
PLACE = {"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}


def seen(env: Mapping[str, str], address: str = "10.0.0.1") -> list[dict[str, str]]:
    """The variables of each worker."""
    workers = tuple(
        WorkerJob(rank, rank, {**PLACE, "HOROVOD_RANK": str(rank)}, ("true",)) for rank in (2, 3)
    )
    job = AgentJob("host-1", "/", env, workers, b"s" * 32)
    told = with_framework_variables(job, address, 4321)
    return [{**told.env, **worker.env} for worker in told.workers]


def of_jax(env: Mapping[str, str]) -> list[tuple[str | None, ...]]:
    return [tuple(variables.get(name) for name in NAMES) for variables in seen(env)]


def test_each_rank_gets_its_place_and_the_address_of_rank_0() -> None:
    at = "10.0.0.1:4321"
    assert of_jax({}) == [(at, at, "4", "2"), (at, at, "4", "3")]
    assert seen({})[0]["MASTER_PORT"] == "4321"
    assert seen({}, "fd00::1")[0]["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:4321"
    assert jax_process_in(seen({})[1]) == JaxProcess(at, 4, 3)


def test_what_the_user_set_stays() -> None:
    assert of_jax({NAMES[0]: "a:1"})[0] == ("a:1", "a:1", "4", "2")
    assert of_jax({NAMES[1]: "b:1,c:2"})[0] == ("10.0.0.1:4321", "b:1,c:2", None, None)
    assert of_jax({NAMES[3]: "9"})[0] == ("10.0.0.1:4321", None, None, "9")


def test_what_a_rank_of_another_job_inherited_is_not_the_users() -> None:
    outer = dict(zip(NAMES, ("a:1", "a:1", "8", "1"), strict=True)) | {"HOROVOD_RANK": "1"}
    assert of_jax(outer) == of_jax({})


@pytest.mark.parametrize("missing", ["JAX_COORDINATOR_ADDRESS", "HOROVOD_RANK", "HOROVOD_SIZE"])
def test_without_horovodrun_jax_is_told_nothing(missing: str) -> None:
    assert (
        jax_process_in({name: text for name, text in seen({})[0].items() if name != missing})
        is None
    )
