"""A rank that makes the others wait is named, with what the job would gain without it."""

from __future__ import annotations

import functools
import io
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launcher import environment

from horovod.runner.output.console import Console
from horovod.runner.placing.hosts import Host, assign
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting import elastic as elastic_launching
from horovod.runner.starting import launch as launching
from horovod.runner.starting.requests import (
    Caller,
    ElasticRequest,
    FixedRequest,
    LaunchOptions,
)
from horovod.runner.supervision.elastic.rules import Rules
from horovod.runner.supervision.slow_worker_watch import SlowMemberWatch, SlowWorkerWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = str(Path(__file__).with_name("throttled_rank.py"))
WINDOW_S = 0.3  # so that a test does not take 20 s


def settings_of(*words: object, **env: str) -> JobSettings:
    command = (sys.executable, PROGRAM, *map(str, words))
    return JobSettings(command, os.getcwd(), environment(**env))


class Heard(io.StringIO):
    """What the launcher says; makes a file once it has named a rank."""

    def __init__(self, named: Path | None = None) -> None:
        super().__init__()
        self._named = named

    def write(self, text: str) -> int:
        if self._named is not None and "makes the others wait" in text:
            self._named.touch()
        return super().write(text)


def run(
    monkeypatch: pytest.MonkeyPatch, how: str, slow_rank: int, end: int | Path, **env: str
) -> str:
    """Runs two ranks for some steps, or until one was named; returns what the launcher said."""
    shorter = functools.partial(SlowWorkerWatch, window_s=WINDOW_S)
    monkeypatch.setattr(launching, "SlowWorkerWatch", shorter)
    text = Heard(end if isinstance(end, Path) else None)
    with Console(text, text) as console:
        slots = assign([Host("localhost", None)], 2)
        settings = settings_of(how, slow_rank, end, **env)
        request = FixedRequest(settings, LaunchOptions(), slots)
        outcome = launching.start(request, Caller(console))
    assert outcome.exit_code == 0, text.getvalue()
    return text.getvalue()


def run_elastic(
    monkeypatch: pytest.MonkeyPatch, rules: Rules, *words: object, slots: int = 3, **env: str
) -> str:
    """Runs an elastic job on this machine; returns what the launcher and the workers said."""
    shorter = functools.partial(SlowMemberWatch, window_s=WINDOW_S)
    monkeypatch.setattr(elastic_launching, "SlowMemberWatch", shorter)
    text = Heard(words[-1] if isinstance(words[-1], Path) else None)
    with Console(text, text) as console:
        settings, hosts = settings_of(*words, **env), (Host("localhost", slots),)
        request = ElasticRequest(settings, LaunchOptions(), rules, hosts=hosts)
        outcome = launching.start(request, Caller(console))
    assert outcome.exit_code == 0, text.getvalue()
    return text.getvalue()


@contextmanager
def cpu_quota() -> Iterator[Path]:
    """A cgroup whose processes get a tenth of a core."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = (root if unified else root / "cpu") / f"horovod-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    try:
        if unified:
            (group / "cpu.max").write_text("1000 10000")
        else:
            (group / "cpu.cfs_period_us").write_text("10000")
            (group / "cpu.cfs_quota_us").write_text("1000")
        yield group
    except OSError as error:
        pytest.skip(f"cannot set a CPU quota: {error}")
    finally:
        group.rmdir()


def check_named(said: str, who: str) -> None:
    """The launcher named it while the job ran, and at its end."""
    found = re.search(rf"{who} .*makes the others wait: .* would take (\d+) % less time", said)
    assert found, said
    assert 20 <= int(found[1]) <= 99
    assert re.search(r"the others waited for .* for ", said)


# Rank 0 coordinates the others, whose messages it reads late if it is slow itself.
@pytest.mark.parametrize("slow_rank", [0, 1])
def test_the_slow_rank_is_named_while_the_job_runs_and_at_its_end(
    slow_rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Steps that sleep instead of computing, so that a busy machine changes little.
    said = run(monkeypatch, "sleep", slow_rank, tmp_path / "named")
    check_named(said, f"rank {slow_rank} on localhost")
    assert f"the others waited for rank {slow_rank} on localhost for " in said


def test_a_rank_that_is_stopped_most_of_the_time_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_named(run(monkeypatch, "stop", 1, tmp_path / "named"), "rank 1 on localhost")


def test_a_rank_with_a_small_cpu_quota_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with cpu_quota() as group:
        said = run(monkeypatch, str(group), 1, tmp_path / "named")
    check_named(said, "rank 1 on localhost")


def test_a_slow_worker_of_an_elastic_job_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = run_elastic(monkeypatch, Rules(3, 2), "sleep", 1, tmp_path / "named")
    check_named(said, r"rank 1 \(localhost-1\)")
    assert "the others waited for worker localhost-1 for " in said
    assert said.count("ends well with 3 ranks") == 3


def test_nobody_is_named_if_the_user_does_not_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(monkeypatch, "sleep", 1, 75, HOROVOD_SLOW_WORKER="off")
    assert "the others wait" not in said, said


def test_a_slow_worker_is_replaced_in_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules(3, 2, 3, fixed_hosts=True)
    env = {"HOROVOD_SLOW_WORKER": "replace"}
    said = run_elastic(monkeypatch, rules, "stop", 1, "change", slots=4, **env)
    line = r"generation 1, 3 -> 3 ranks: rank 1 \(localhost-1\) leaves: the others wait for it "
    assert re.search(line + r"\(without it, .*\); localhost-3 joins", said), said
    for worker in (0, 2, 3):
        assert f"worker localhost-{worker} ends well with 3 ranks: True" in said, said
    assert "1 change of its workers, 0 failures, 1 slow worker left" in said
    assert "the others waited for worker localhost-1 for " in said


def test_a_slow_worker_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"HOROVOD_SLOW_WORKER": "remove"}
    said = run_elastic(monkeypatch, Rules(3, 2), "sleep", 0, "change", **env)
    assert re.search(r"generation 1, 3 -> 2 ranks: rank 0 \(localhost-0\) leaves", said), said
    for worker in (1, 2):
        assert f"worker localhost-{worker} ends well with 2 ranks: True" in said, said
    assert "0 failures, 1 slow worker left" in said
