from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.cli import main
from horovod.runner.settings.config_file import read_config_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "horovod.yaml"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            "params:\n  fusion_treshold_mb: 1",
            2,
            "unknown key params.fusion_treshold_mb; did you mean params.fusion_threshold_mb?",
        ),
        ("\nparam: {}", 2, "unknown key param; did you mean params?"),
        ("cycle_time_ms: 3", 1, "unknown key cycle_time_ms; did you mean params.cycle_time_ms?"),
        (
            "logging: {cache_capacity: 3}",
            1,
            "unknown key logging.cache_capacity; did you mean params.cache_capacity?",
        ),
        ("zzz: 1", 1, "unknown key zzz; there are autotune, checkpoint, controller, "),
        ("timeline:\n  zzz: 1", 2, "timeline.zzz; there are timeline.filename, timeline.mark_c"),
        ("1: 2", 1, "unknown key 1"),
        (
            "params: {fusion_threshold_mb: -1}",
            1,
            "params.fusion_threshold_mb is -1, but must be an integer, at least 0",
        ),
        ("params:\n\n  cache_capacity: many", 3, "params.cache_capacity is 'many', but must be an"),
        ("params: {cache_capacity: 1.5}", 1, "is 1.5, but must be an integer"),
        ("params: {cache_capacity: true}", 1, "is True, but must be an integer"),
        ("params: {cycle_time_ms: .nan}", 1, "is nan, but must be a number"),
        (
            "autotune: {gaussian_process_noise: 1.5}",
            1,
            "is 1.5, but must be a number (with a dot, such as 0.5), between 0 and 1",
        ),
        ("params: {hierarchical_allreduce: 1}", 1, "is 1, but must be true or false"),
        ("logging: {level: loud}", 1, "is 'loud', but must be one of TRACE, DEBUG, INFO"),
        ("controller: nccl", 1, "controller is 'nccl', but must be one of gloo, mpi"),
        ("params: 3", 1, "params is 3, but must be a section with keys of its own"),
        ("params:\n  cache_capacity: 1\n  cache_capacity: 2", 3, "is given twice, first in line 2"),
        ("params: [", 1, "not YAML: "),
        ("a: 'x\n", 2, "not YAML: "),
        ("params: !!python/object/apply:os.getcwd []", 1, "not YAML: "),
    ],
)
def test_a_fault_is_named_with_its_line(text: str, line: int, message: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config_file(str(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_faults_are_told_at_once(path: Path) -> None:
    path.write_text("params:\n  x: 1\nlogging:\n  level: 3\n")
    with pytest.raises(UsageError) as caught:
        read_config_file(str(path))
    assert [part.split(": ")[0] for part in str(caught.value).splitlines()] == [
        f"{path}:2",
        f"{path}:4",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "params:\n", "params: {}\nlogging:\n"])
def test_a_file_may_say_nothing(text: str, path: Path) -> None:
    path.write_text(text)
    assert not read_config_file(str(path)).values


def test_a_list_is_no_config_file(path: Path) -> None:
    path.write_text("- params")
    with pytest.raises(UsageError, match="expected sections such as 'params:'"):
        read_config_file(str(path))


@pytest.mark.parametrize("text", ["controller: gloo", "controller: GLOO"])
def test_the_controller_is_understood(text: str, path: Path) -> None:
    path.write_text(text)
    assert read_config_file(str(path)).controller == "gloo"


def test_an_old_key_is_understood_with_advice(path: Path) -> None:
    path.write_text("logging:\n  hide_timestamp: true\n")
    config = read_config_file(str(path))
    assert config.values == {"log_with_timestamp": False}
    assert config.advice == [
        f"{path}:2: logging.hide_timestamp is deprecated; use logging.with_timestamp"
    ]


@pytest.mark.parametrize("name", ["nowhere/c.yaml", "."])
def test_a_file_that_cannot_be_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-np", "1", "--config-file", str(tmp_path / name), "true"], {}) == 2
    assert "cannot read the config file" in capsys.readouterr().err


def test_a_wrong_file_starts_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("params: {cycle_time_ms: -1}")
    assert main(["-np", "1", "--config-file", str(path), "touch", str(path) + "x"], {}) == 2
    assert "params.cycle_time_ms is -1" in capsys.readouterr().err
    assert not path.with_name(path.name + "x").exists()


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(run.stdout.split())


def test_only_who_reads_a_file_pays_for_it() -> None:
    heavy = {"pydantic", "yaml", "rich", "importlib.metadata"}
    assert not modules_after("import horovod.runner.cli, horovod.runner.agent") & heavy
    assert not modules_after("import horovod._rank.start") & {"pydantic", "yaml", "rich"}
    assert modules_after("import horovod.runner.settings.config_file") & heavy == {"yaml"}
