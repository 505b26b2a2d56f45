"""The combinations of parameters, in the order of RiseML's documents."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from horovod.runner.experiment.grid import SHELL, Line, range_values, runs_of, variable_of
from horovod.runner.experiment.schema import Range


def values(low: str, high: str, step: str) -> list[str]:
    return range_values(Range(min=low, max=high, step=step))


def test_names_are_sorted_and_the_last_varies_fastest() -> None:
    runs = runs_of(
        {"lr": ["0.1", "0.2"], "epochs": ["5", "9"]}, [Line("x {{ lr }} {{epochs}}", "host")]
    )
    assert [str(run.lines[0]) for run in runs] == [
        f"x {text} (on host)" for text in ("0.1 5", "0.2 5", "0.1 9", "0.2 9")
    ]


SHELLS = [SHELL, ("sh", "-e", "-c"), ("bash", "-c")]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(("on", "expected"), [("host", "0 2"), ("rank0", "0")])
def test_a_line_is_for_some_processes(on: str, expected: str, shell: tuple[str, ...]) -> None:
    command = Line('echo "it\'s"; exit $CODE', on, shell=shell).command
    ran = []
    for rank in range(4):
        env = {"HOROVOD_RANK": f"{rank}", "HOROVOD_LOCAL_RANK": f"{rank % 2}", "CODE": "3"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) in [(3, "it's\n"), (0, "")]
        ran += [f"{rank}"] if done.returncode else []
    assert " ".join(ran) == expected


def gpus_of(line: Line, **env: str) -> str:
    env |= {"HOROVOD_RANK": "5", "PATH": os.environ["PATH"]}
    done = subprocess.run(line.command, env=env, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_each_process_that_has_several_gpus_sees_its_own(shell: tuple[str, ...]) -> None:
    line = Line('echo "$CUDA_VISIBLE_DEVICES:$hvd_first"', gpus=2, shell=shell)
    assert gpus_of(line, HOROVOD_LOCAL_RANK="3") == "6,7:\n"
    assert gpus_of(line, HOROVOD_WORKER_SLOT="1", CUDA_VISIBLE_DEVICES="4,GPU-5,6,7") == "6,7:\n"
    assert gpus_of(replace(line, on="host"), SLURM_LOCALID="0") == "0,1:\n"
    assert gpus_of(replace(line, gpus=0), HOROVOD_LOCAL_RANK="3") == ":\n"


@pytest.mark.parametrize("on", ["all", "host", "rank0"])
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(
    "text", ["false | cat", "false; true", "cat < /no/such | true", "(exit 3) | cat; echo on"]
)
def test_a_line_fails_with_any_of_its_commands(text: str, gpus: int, on: str) -> None:
    env = {"HOROVOD_RANK": "0", "HOROVOD_LOCAL_RANK": "0", "PATH": os.environ["PATH"]}
    line = Line(text, on, gpus)
    done = subprocess.run(line.command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0, done.stdout) == (True, "")
    with_another = replace(line, shell=("bash", "-c")).command
    assert subprocess.run(with_another, env=env, capture_output=True).returncode == 0


def test_a_program_takes_the_place_of_the_shell() -> None:
    """So signals reach it, and its exit code is that of the rank."""
    line = Line("exec cat /proc/self/stat; true")
    with subprocess.Popen(line.command, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.read().split()[0] == f"{shell.pid}"


def test_a_file_without_parameters_is_one_run() -> None:
    (run,) = runs_of({}, [Line("a"), Line("b {{c}}")])
    assert run.lines == (Line("a"), Line("b {{c}}"))


def test_ranges_have_their_greatest_value_and_no_rounding() -> None:
    assert values("0", "0.3", "0.1") == ["0.0", "0.1", "0.2", "0.3"]
    assert values("1", "6", "2") == ["1", "3", "5"]
    assert values("1e-3", "3e-3", "1e-3") == ["0.001", "0.002", "0.003"]
    assert values("2", "2", "1") == ["2"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("a", "2", "1"), "must be numbers"),
        (("0", "inf", "1"), "do not lead"),
        (("0", "1", "0"), "do not lead"),
        (("0", "1", "-1"), "do not lead"),
        (("0", "1", "1e-9"), "more than 10000 values"),
        (("0", "1e999999", "1e-999999"), "at most 20 digits"),
        (("0", "1e-999999", "1e-999999"), "at most 20 digits"),
    ],
)
def test_ranges_that_make_no_sense(given: tuple[str, str, str], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        values(*given)


def test_too_many_runs() -> None:
    many = [str(each) for each in range(101)]
    with pytest.raises(ValueError, match="more than 10000 runs"):
        runs_of({"a": many, "b": many}, [Line("x")])


def test_variables() -> None:
    assert variable_of("lr-decay") == "LR_DECAY"
