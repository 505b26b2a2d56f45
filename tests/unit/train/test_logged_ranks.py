"""hvd.log on ranks that are threads."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from horovod._rank.job_context import current_job
from horovod._train.interface import init, log, rank, shutdown, size
from horovod._train.logged import call
from horovod._train.logged.call import catch_up_after_join, flush_before_join
from horovod._train.process_set import global_process_set, group_of
from horovod.errors import HorovodInternalError, MismatchError, UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("HOROVOD_LOG", f"jsonl:{path}")
    return path


def read(path: Path) -> list[tuple[int, dict[str, float]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["run"] for line in lines}) == 1
    return [(line["step"], line["values"]) for line in lines]


def join() -> int:
    """As the adapters do it."""
    flush_before_join()
    handle = group_of(global_process_set).join()
    handle.wait()
    catch_up_after_join(handle.last_joined())
    return handle.last_joined()


def on_ranks(num_ranks: int, body: Callable[[], Any]) -> list[Any]:
    def run() -> Any:
        init()
        result = body()
        shutdown()
        return result

    return run_ranks(num_ranks, run)


def test_average_over_ranks_is_that_of_all_samples(metrics: Path) -> None:
    samples = [[1.0, 2.0, 4.0], [8.0], [16.0, 32.0]]

    def body() -> None:
        mine = samples[rank()]
        for step in range(100):
            log(loss=step + sum(mine) / len(mine), weight=len(mine))
            log(plain=rank(), step=step)

    on_ranks(3, body)
    everything = [value for mine in samples for value in mine]
    mean = sum(everything) / len(everything)
    found = read(metrics)
    assert [step for step, _ in found] == [step for step in range(100) for _ in range(2)]
    for step, values in found:
        if "loss" in values:
            assert values["loss"] == pytest.approx(step + mean, rel=1e-12)
        else:
            assert values == {"plain": 1.0}


def test_call_does_not_wait_for_other_ranks(metrics: Path) -> None:
    others_may_log = threading.Event()

    def body() -> None:
        if rank() == 1:
            assert others_may_log.wait(30.0)
        for _ in range(200):  # more than there are names of operations
            log(loss=1.0)
        others_may_log.set()

    on_ranks(2, body)
    assert [step for step, _ in read(metrics)] == list(range(200))


def test_values_that_come_later_do_not_hold_up_the_caller(
    metrics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As numbers on a GPU do; those behind them keep their order."""
    computed = threading.Event()

    class Computing:
        def __init__(self, value: float) -> None:
            self.value = value

    def take(name: str, value: Any) -> Any:
        def read_value() -> float:
            assert computed.wait(30.0)
            return float(value.value)

        return read_value if isinstance(value, Computing) else None

    monkeypatch.setattr(call, "_takers", [take])

    def body() -> None:
        log(loss=Computing(rank()))
        log(loss=5)
        if rank() == 0:
            computed.set()

    on_ranks(2, body)
    assert read(metrics) == [(0, {"loss": 0.5}), (1, {"loss": 5.0})]


def log_until_it_fails() -> None:
    """Until an earlier call is known to differ."""
    for _ in range(10_000):
        log(loss=1)
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ({"accuracy": 1}, "accuracy with no step and no weight"),
        ({"loss": 1, "accuracy": 1}, "accuracy, loss with no step and no weight"),
        ({"loss": 1, "step": 3}, "loss with step 3 and no weight"),
        ({"loss": 1, "weight": 3}, "loss with no step and a weight"),
    ],
)
def test_ranks_that_log_differently(metrics: Path, mine: dict[str, Any], message: str) -> None:
    def body() -> str:
        log(**(mine if rank() == 1 else {"loss": 1}))
        with pytest.raises(MismatchError) as error:
            log_until_it_fails()
        return str(error.value)

    said = on_ranks(2, body)
    assert message in said[1]
    assert "loss with no step and no weight" in said[0]
    for text in said:
        for number in range(2):
            assert f"rank {number} (" in text
        assert text.count("test_logged_ranks.py:") == 3


def test_rank_that_does_not_log_is_told_at_the_end(
    metrics: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def body() -> None:
        if rank() == 0:
            log(loss=1)

    on_ranks(2, body)
    (message,) = (r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
    assert message.startswith("rank 0: the values of hvd.log of step 0 (loss) are lost")
    assert "rank 1" in message
    assert metrics.read_text() == ""


def test_joined_ranks_do_not_count(metrics: Path) -> None:
    """Rank 0 has one batch, rank 1 two, rank 2 three: what it misses comes after the join."""

    def body() -> int:
        for _ in range(rank() + 1):
            log(loss=rank() + 1, weight=2)
        last = join()
        log(loss=7.0)
        return last

    assert on_ranks(3, body) == [2, 2, 2]
    assert read(metrics) == [(step, {"loss": v}) for step, v in enumerate((2.0, 2.5, 3.0, 7.0))]


def test_only_rank_0_has_to_know_the_destinations(
    metrics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        config = current_job().config
        if rank() > 0:
            monkeypatch.setitem(vars(config), "log", "")
        for _ in range(rank() + 1):
            log(loss=rank())
        join()
        log(loss=7.0)

    on_ranks(2, body)
    assert read(metrics) == [(0, {"loss": 0.5}), (1, {"loss": 1.0}), (2, {"loss": 7.0})]


def test_failed_job_says_what_is_lost_and_the_next_goes_on(
    metrics: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> None:
        init()
        log(loss=1)
        if rank() == 0:
            log(loss=2)
            with pytest.raises(HorovodInternalError):
                group_of(global_process_set).barrier().wait()
        shutdown()
        init()
        log(loss=3)
        shutdown()

    run_ranks(2, run)
    assert read(metrics)[0] == (0, {"loss": 1.0})
    assert read(metrics)[-1] == (2, {"loss": 3.0})
    lost = [r.getMessage() for r in caplog.records if "are lost" in r.getMessage()]
    assert len(lost) == 1
    assert "of step 1 (loss)" in lost[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "1"}, "loss is a str"),
        ({"loss": 1j}, "loss is a complex"),
        ({"loss": None}, "loss is a NoneType"),
        ({"loss": 1, "weight": -1}, "weight=-1 must be"),
        ({"loss": 1, "weight": float("nan")}, "weight=nan must be"),
    ],
)
def test_wrong_arguments(metrics: Path, arguments: dict[str, Any], message: str) -> None:
    def body() -> None:
        with pytest.raises(UsageError, match=message):
            log(**arguments)
        log(loss=size())

    on_ranks(2, body)
    assert read(metrics) == [(0, {"loss": 2.0})]


def test_weight_0_on_all_ranks_writes_nothing_and_says_so(
    metrics: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_ranks(2, lambda: log(loss=1, weight=0))
    assert metrics.read_text() == ""
    assert any("the weight is 0 on all ranks" in r.getMessage() for r in caplog.records)
