from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.cli.command import main
from horovod.runner.starting.controller import Launcher, Surroundings, choose, request_of

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = Surroundings()
MPI = Surroundings(mpirun=True)
LSF = Surroundings(lsf=True)
LSF_JSRUN = Surroundings(mpirun=True, lsf=True, jsrun=True)
JSRUN = Surroundings(jsrun=True)


@pytest.mark.parametrize(
    ("request_", "found", "launcher"),
    [
        ("gloo", NOTHING, Launcher.AGENTS),
        ("gloo", LSF_JSRUN, Launcher.AGENTS),
        ("mpi", MPI, Launcher.MPIRUN),
        ("mpi", LSF_JSRUN, Launcher.MPIRUN),
        ("jsrun", LSF_JSRUN, Launcher.JSRUN),
        ("", LSF_JSRUN, Launcher.JSRUN),
        ("", LSF, Launcher.AGENTS),
        ("", JSRUN, Launcher.AGENTS),
        ("", MPI, Launcher.AGENTS),
        ("", NOTHING, Launcher.AGENTS),
    ],
)
def test_who_starts_the_ranks(request_: str, found: Surroundings, launcher: Launcher) -> None:
    choice = choose(request_, found)
    assert choice.launcher is launcher
    assert "the engine is Horovod's own" in choice.line
    assert "\n" not in choice.line


@pytest.mark.parametrize(
    ("request_", "found", "message"),
    [
        ("mpi", NOTHING, "no mpirun on the path; install an MPI, or leave --mpi"),
        ("jsrun", MPI, r"no job of LSF \(LSB_JOBID is not set\)"),
        ("jsrun", JSRUN, "no job of LSF"),
        ("jsrun", LSF, "no jsrun on the path"),
    ],
)
def test_what_is_not_there_is_refused(request_: str, found: Surroundings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(request_, found)


@pytest.mark.parametrize(
    ("given", "config", "request_"),
    [((), "", ""), ((), "mpi", "mpi"), (("gloo",), "mpi", "gloo"), (("jsrun",), "gloo", "jsrun")],
)
def test_a_flag_beats_the_file(given: tuple[str, ...], config: str, request_: str) -> None:
    flags = {name: name in given for name in ("gloo", "mpi", "jsrun")}
    assert request_of(flags, config) == request_


def test_two_controllers_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "--gloo", "--mpi", "true"], {}) == 2
    assert "--gloo and --mpi are mutually exclusive" in capsys.readouterr().err


def test_jsrun_outside_of_lsf_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "--jsrun", "true"], {"PATH": "/nowhere"}) == 2
    assert "no job of LSF" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], ""),
        (["--gloo"], ""),
        (
            ["--gloo", "--verbose"],
            "horovodrun: gloo: horovodrun starts the ranks; the engine is Horovod's own, without "
            "Gloo\n",
        ),
    ],
)
def test_what_the_default_does_too_is_only_told_to_who_asks(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-np", "1", *flags, "--dry-run", "true"], {}) == 0
    assert capsys.readouterr().err == said


def test_mpirun_of_a_config_file_starts_no_elastic_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mpirun").touch(0o755)
    (tmp_path / "config").write_text("controller: mpi")
    words = ["-np", "1", "--min-np", "1", "--config-file", str(tmp_path / "config"), "true"]
    assert main(words, {"PATH": str(tmp_path)}) == 2
    assert "mpirun cannot start elastic jobs: give --gloo" in capsys.readouterr().err
