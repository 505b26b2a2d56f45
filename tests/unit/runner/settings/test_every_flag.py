"""Every flag and every key of the config file, row by row: what reaches the ranks.

A row is one line of the description of the interface: the words of the command line, the same in
the config file, and the variables that the ranks get from either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from horovod._settings import TABLE
from horovod._settings.setting import Kind, Setting, Spelling
from horovod.runner.cli.command import main
from horovod.runner.cli.options import make_parser
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from horovod.runner.starting.requests import Caller, JobRequest


@dataclass(frozen=True)
class Row:
    words: str
    config: str
    variables: dict[str, str]


def row(words: str, config: str, **variables: str) -> Row:
    return Row(words, config, {f"HOROVOD_{name}": value for name, value in variables.items()})


TUNED = "autotune: {enabled: true, "
ROWS = (
    # tuning
    row(
        "--fusion-threshold-mb 10",
        "params: {fusion_threshold_mb: 10}",
        FUSION_THRESHOLD="10485760",
    ),
    row("--cycle-time-ms 20", "params: {cycle_time_ms: 20}", CYCLE_TIME="20.0"),
    row("--cycle-time-ms 2.5", "params: {cycle_time_ms: 2.5}", CYCLE_TIME="2.5"),
    row("--cache-capacity 512", "params: {cache_capacity: 512}", CACHE_CAPACITY="512"),
    row(
        "--hierarchical-allreduce",
        "params: {hierarchical_allreduce: true}",
        HIERARCHICAL_ALLREDUCE="1",
    ),
    row(
        "--no-hierarchical-allreduce",
        "params: {hierarchical_allreduce: no}",
        HIERARCHICAL_ALLREDUCE="0",
    ),
    row(
        "--hierarchical-allgather",
        "params: {hierarchical_allgather: true}",
        HIERARCHICAL_ALLGATHER="1",
    ),
    row(
        "--no-hierarchical-allgather",
        "params: {hierarchical_allgather: false}",
        HIERARCHICAL_ALLGATHER="0",
    ),
    row("--torus-allreduce", "params: {torus_allreduce: true}", TORUS_ALLREDUCE="1"),
    row("--no-torus-allreduce", "params: {torus_allreduce: false}", TORUS_ALLREDUCE="0"),
    # autotune
    row("--autotune", "autotune: {enabled: true}", AUTOTUNE="1"),
    row("--no-autotune", "autotune: {enabled: false}", AUTOTUNE="0"),
    row(
        "--autotune --autotune-log-file a.csv",
        TUNED + "log_file: a.csv}",
        AUTOTUNE="1",
        AUTOTUNE_LOG="a.csv",
    ),
    row(
        "--autotune --autotune-warmup-samples 1",
        TUNED + "warmup_samples: 1}",
        AUTOTUNE="1",
        AUTOTUNE_WARMUP_SAMPLES="1",
    ),
    row(
        "--autotune --autotune-steps-per-sample 2",
        TUNED + "steps_per_sample: 2}",
        AUTOTUNE="1",
        AUTOTUNE_STEPS_PER_SAMPLE="2",
    ),
    row(
        "--autotune --autotune-bayes-opt-max-samples 10",
        TUNED + "bayes_opt_max_samples: 10}",
        AUTOTUNE="1",
        AUTOTUNE_BAYES_OPT_MAX_SAMPLES="10",
    ),
    row(
        "--autotune --autotune-gaussian-process-noise 0.2",
        TUNED + "gaussian_process_noise: 0.2}",
        AUTOTUNE="1",
        AUTOTUNE_GAUSSIAN_PROCESS_NOISE="0.2",
    ),
    row(
        "--autotune --cache-capacity 1024 --no-hierarchical-allgather",
        "{autotune: {enabled: true}, "
        "params: {cache_capacity: 1024, hierarchical_allgather: false}}",
        AUTOTUNE="1",
        CACHE_CAPACITY="1024",
        HIERARCHICAL_ALLGATHER="0",
    ),
    row("--autotune-log-file a.csv", "autotune: {log_file: a.csv}"),
    # commits in files
    row(
        "--checkpoint-dir s3://a/b",
        "checkpoint: {directory: 's3://a/b'}",
        CHECKPOINT_DIR="s3://a/b",
    ),
    row(
        "--checkpoint-dir a --checkpoint-every 3",
        "checkpoint: {directory: a, every: 3}",
        CHECKPOINT_DIR="a",
        CHECKPOINT_EVERY="3",
    ),
    # timeline
    row("--timeline-filename t.json", "timeline: {filename: t.json}", TIMELINE="t.json"),
    row(
        "--timeline-filename t.json --timeline-mark-cycles",
        "timeline: {filename: t.json, mark_cycles: true}",
        TIMELINE="t.json",
        TIMELINE_MARK_CYCLES="1",
    ),
    row(
        "--timeline-filename t.json --no-timeline-mark-cycles",
        "timeline: {filename: t.json, mark_cycles: false}",
        TIMELINE="t.json",
        TIMELINE_MARK_CYCLES="0",
    ),
    row("--timeline-mark-cycles", "timeline: {mark_cycles: true}"),
    # stall check
    row("--no-stall-check", "stall_check: {enabled: false}", STALL_CHECK_DISABLE="1"),
    row("--stall-check", "stall_check: {enabled: true}", STALL_CHECK_DISABLE="0"),
    row(
        "--stall-check-warning-time-seconds 10",
        "stall_check: {warning_time_seconds: 10}",
        STALL_CHECK_TIME_SECONDS="10",
    ),
    row(
        "--stall-check-shutdown-time-seconds 20",
        "stall_check: {shutdown_time_seconds: 20}",
        STALL_SHUTDOWN_TIME_SECONDS="20",
    ),
    row("--deadlock-timeout 30", "stall_check: {deadlock_timeout: 30}", DEADLOCK_TIMEOUT="30"),
    row("--slow-worker off", "stall_check: {slow_worker: off}", SLOW_WORKER="off"),
    # libraries
    row(
        "--mpi-threads-disable",
        "library_options: {mpi_threads_disable: true}",
        MPI_THREADS_DISABLE="1",
    ),
    row(
        "--no-mpi-threads-disable",
        "library_options: {mpi_threads_disable: false}",
        MPI_THREADS_DISABLE="0",
    ),
    row("--num-nccl-streams 2", "library_options: {num_nccl_streams: 2}", NUM_NCCL_STREAMS="2"),
    row("--num-streams 4", "library_options: {num_streams: 4}", NUM_STREAMS="4"),
    row("--thread-affinity 1", "library_options: {thread_affinity: 1}", THREAD_AFFINITY="1"),
    row(
        "--thread-affinity 0,2", "library_options: {thread_affinity: '0,2'}", THREAD_AFFINITY="0,2"
    ),
    row(
        "--gloo-timeout-seconds 60",
        "library_options: {gloo_timeout_seconds: 60}",
        GLOO_TIMEOUT_SECONDS="60",
    ),
    # logging
    row("--log-level INFO", "logging: {level: INFO}", LOG_LEVEL="INFO"),
    row("--log-level debug", "logging: {level: debug}", LOG_LEVEL="DEBUG"),
    row("--log-with-timestamp", "logging: {with_timestamp: true}", LOG_HIDE_TIME="0"),
    row("--log-without-timestamp", "logging: {with_timestamp: false}", LOG_HIDE_TIME="1"),
    row("--log-hide-timestamp", "logging: {hide_timestamp: true}", LOG_HIDE_TIME="1"),
    row("--no-log-hide-timestamp", "logging: {hide_timestamp: false}", LOG_HIDE_TIME="0"),
    # flags without a key
    Row("--tcp", "", {"NCCL_IB_DISABLE": "1"}),
    row("--start-timeout 5", "", START_TIMEOUT="5"),
    row("--grace 2.5", "", GRACE_SECONDS="2.5"),
)

# What launches differently, and is tested by itself.
OF_THE_LAUNCHER = {
    *("-h", "--help", "-v", "--version", "-cb", "--check-build", "--check", "--dry-run"),
    *("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "--config-file"),
    *("--network-interface", "--network-interfaces", "--output-filename", "--verbose"),
    *("-prefix-timestamp", "--prefix-output-with-timestamp", "--gloo", "--mpi", "--jsrun"),
    *("--disable-cache", "-p", "--ssh-port", "-i", "--ssh-identity-file"),
    *("--mpi-args", "--binding-args", "--node-rank", "--num-nodes", "--rendezvous"),
    *("--stdin-rank", "--print-completion"),
    *("--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--host-discovery-script"),
    *("--slots-per-host", "--elastic-timeout", "--reset-limit", "--worker-timeout"),
    *("--blacklist-cooldown-range", "--cooldown-range", "--join", "--join-file"),
    *("-f", "--job-file", "-d", "--detach", "--resume", "--backend"),
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


def options_of_the_parser() -> dict[str, argparse.Action]:
    return make_parser()._option_string_actions


# The rows of settings that the description of the interface does not know follow from their table.
SPELLED = [each for each in TABLE.values() if isinstance(each.flag, Spelling)]


def example_of(setting: Setting) -> tuple[str, object, str]:
    """A value that makes sense: on the command line, in the config file, and for the ranks."""
    spelling = setting.flag
    assert isinstance(spelling, Spelling)
    if setting.words:
        word = setting.words[0].upper() if spelling.capitals else setting.words[0]
        return word, word, word
    if setting.kind in (Kind.INTEGER, Kind.NUMBER):
        number = 1 if setting.kind is Kind.INTEGER or spelling.whole else 1.0
        return str(number), number, str(number * spelling.scale)
    return "0,1", "0,1", "0,1"


def needed_by(spelling: Spelling) -> list[Setting]:
    return [
        each
        for each in SPELLED
        if isinstance(each.flag, Spelling) and each.flag.name == spelling.needs
    ]


@pytest.mark.parametrize("setting", SPELLED, ids=lambda setting: setting.name)
def test_a_setting_reaches_the_ranks_as_its_row_spells_it(
    setting: Setting, ranks: Ranks, tmp_path: Path
) -> None:
    words: list[str] = []
    document: dict[str, dict[str, object]] = {}
    for each in [*needed_by(setting.flag), setting]:  # type: ignore[arg-type]
        spelling = each.flag
        assert isinstance(spelling, Spelling)
        section, _, name = spelling.key.partition(".")
        word, value, expected = ("", True, "1") if each.kind is Kind.FLAG else example_of(each)
        expected = "0" if spelling.negated else expected
        words += [f"--{spelling.name}", *filter(None, [word])]
        document.setdefault(section, {})[name] = value
    assert main(["-np", "1", *words, "true"], {}) == 0
    assert ranks.variables[setting.name] == expected
    path = tmp_path / "horovod.yaml"
    path.write_text(json.dumps(document))
    assert main(["-np", "1", "--config-file", str(path), "true"], {}) == 0
    assert ranks.variables[setting.name] == expected


def test_every_option_is_in_the_table_of_settings_or_has_a_row_or_a_test_of_its_own() -> None:
    in_rows = {word for each in ROWS for word in each.words.split() if word.startswith("--")}
    in_table = {flag for setting in SPELLED for flag in setting.flags}
    assert options_of_the_parser().keys() == in_rows | in_table | OF_THE_LAUNCHER
