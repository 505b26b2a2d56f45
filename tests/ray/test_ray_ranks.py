"""What four ranks do, two on each of the two nodes; they stay from one test to the next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes.linear_training import train_linear
from tests.ray.ray_ranks import rank, who
from tests.ray.ray_waits import START_S, is_running, leaving_nothing, wait_until

from horovod._rank import context
from horovod.errors import UsageError
from horovod.ray import RayExecutor, ray_logger

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[RayExecutor]:
    settings = RayExecutor.create_settings(timeout_s=START_S)
    with leaving_nothing(), RayExecutor(settings, num_workers=4) as executor:
        yield executor


def test_ranks_are_grouped_by_node_and_know_no_secret(executor: RayExecutor) -> None:
    ranks = executor.run(who)
    assert [each["rank"] for each in ranks] == [0, 1, 2, 3]
    assert [each["local"] for each in ranks] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert [each["cross"] for each in ranks] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert ranks[0]["node"] == ranks[1]["node"] != ranks[2]["node"] == ranks[3]["node"]
    assert [each["variables"]["RANK"] for each in ranks] == ["0", "1", "2", "3"]
    assert [each["variables"]["LOCAL_RANK"] for each in ranks] == ["0", "1", "0", "1"]
    assert [each["secrets"] for each in ranks] == [[]] * 4
    again = executor.run(who)
    assert [each["pid"] for each in again] == [each["pid"] for each in ranks]


def test_pytorch_trains(executor: RayExecutor) -> None:
    weights = executor.run(train_linear, args=[0.1], kwargs={"steps": 5})
    assert weights == [weights[0]] * 4


def test_callbacks_hear_everything_of_all_ranks(executor: RayExecutor) -> None:
    def train() -> int:
        for step in range(50):
            ray_logger.log({"rank": rank(), "step": step})
        return rank()

    heard: list[tuple[int, int]] = []

    def hear(item: dict[str, int]) -> None:
        heard.append((item["rank"], item["step"]))
        if item["step"] == 3:
            raise RuntimeError("of a callback")

    with pytest.raises(RuntimeError, match="of a callback"):
        executor.run(train, callbacks=[hear])
    assert sorted(heard) == [(rank, step) for rank in range(4) for step in range(50)]


def test_the_first_failure_is_raised_and_the_rest_ended(
    executor: RayExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Comes last, as nobody can use the executor after it."""
    pids = [each["pid"] for each in executor.run(who)]

    def fail() -> None:
        if rank() == 2:
            raise ValueError("of rank 2")
        context.global_group().barrier().wait()

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="of rank 2"):
        executor.run(fail)
    assert f"rank 2 (process {pids[2]}" in caplog.text
    wait_until(lambda: not any(is_running(pid) for pid in pids))
    with pytest.raises(UsageError, match=r"rank 2 .* has failed: ValueError: of rank 2"):
        executor.run(who)
