"""Every flag and every key of the config file: what reaches the ranks is in every_flag.txt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from horovod.runner.cli.command import main
from horovod.runner.cli.options import make_parser
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from horovod.runner.starting.requests import Caller, JobRequest


@dataclass(frozen=True)
class Row:
    words: str
    config: str
    variables: dict[str, str]


def row(line: str) -> Row:
    words, config, variables = (cell.strip() for cell in line.split("|"))
    return Row(words, config, dict(pair.split("=") for pair in variables.split()))


TABLE = Path(__file__).with_name("every_flag.txt")
ROWS = [row(line) for line in TABLE.read_text().splitlines()[1:]]

# What launches differently, and is tested by itself.
OF_THE_LAUNCHER = {
    *("-h", "--help", "-v", "--version", "-cb", "--check-build", "--check", "--dry-run"),
    *("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "--config-file"),
    *("--network-interface", "--network-interfaces", "--output-filename", "--verbose"),
    *("-prefix-timestamp", "--prefix-output-with-timestamp", "--gloo", "--mpi", "--jsrun"),
    *("--disable-cache", "-p", "--ssh-port", "-i", "--ssh-identity-file"),
    *("--mpi-args", "--binding-args", "--node-rank", "--num-nodes", "--rendezvous"),
    *("--stdin-rank", "--print-completion", "--watch", "--dashboard", "--metrics-port"),
    *("--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--host-discovery-script"),
    *("--slots-per-host", "--elastic-timeout", "--reset-limit", "--worker-timeout"),
    *("--blacklist-cooldown-range", "--cooldown-range", "--join", "--join-file"),
    *("-f", "--job-file", "-d", "--detach", "--resume", "--backend"),
    *("--step-ms", "--gradient-mb"),
}


class Ranks:
    """Stands in for the launcher, and keeps what would reach the ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.variables: dict[str, str] = {}
        monkeypatch.setattr("horovod.runner.starting.run_job.start", self.start)

    def start(self, request: JobRequest, caller: Caller) -> Outcome:
        self.variables = {**request.settings.environ, **request.settings.variables}
        return Outcome(0)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(monkeypatch)


@pytest.mark.parametrize("each", ROWS, ids=lambda each: each.words)
def test_a_flag_reaches_the_ranks(each: Row, ranks: Ranks) -> None:
    assert main(["-np", "1", *each.words.split(), "true"], {}) == 0
    assert ranks.variables == each.variables


@pytest.mark.parametrize(
    "each", [each for each in ROWS if each.config], ids=lambda each: each.config
)
def test_a_key_reaches_the_ranks(each: Row, ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "horovod.yaml"
    path.write_text(each.config)
    assert main(["-np", "1", "--config-file", str(path), "true"], {}) == 0
    assert ranks.variables == each.variables


def test_flag_beats_file_beats_environment(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "horovod.yaml"
    path.write_text("params: {fusion_threshold_mb: 1, cycle_time_ms: 1, cache_capacity: 3}")
    words = ["--fusion-threshold-mb", "256", "--config-file", str(path), "--cycle-time-ms", "20"]
    inherited = {
        "HOROVOD_FUSION_THRESHOLD": "1",
        "HOROVOD_CACHE_CAPACITY": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "1800",
    }
    assert main(["-np", "1", *words, "true"], inherited) == 0
    assert ranks.variables == {
        "HOROVOD_FUSION_THRESHOLD": "268435456",
        "HOROVOD_CYCLE_TIME": "20.0",
        "HOROVOD_CACHE_CAPACITY": "3",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "1800",
    }


@pytest.mark.parametrize("off", ["--no-autotune", "--no-stall-check", "--log-without-timestamp"])
def test_a_switch_that_is_off_beats_the_file(off: str, ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "horovod.yaml"
    path.write_text(
        "{autotune: {enabled: true}, stall_check: {enabled: true}, logging: {with_timestamp: true}}"
    )
    main(["-np", "1", "--config-file", str(path), "true"], {})
    from_file = ranks.variables
    main(["-np", "1", "--config-file", str(path), off, "true"], {})
    assert len(from_file) == len(ranks.variables) == 3
    assert len(from_file.items() - ranks.variables.items()) == 1


def test_every_option_has_a_row_or_a_test_of_its_own() -> None:
    in_rows = {word for each in ROWS for word in each.words.split() if word.startswith("--")}
    assert make_parser()._option_string_actions.keys() == in_rows | OF_THE_LAUNCHER
