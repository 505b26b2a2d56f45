"""The combinations of parameters, in the order of RiseML's documents."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from horovod.runner.experiment.grid import Line, placeholders, range_values, runs_of, variable_of
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


@pytest.mark.parametrize(("on", "expected"), [("host", "0 2"), ("rank0", "0")])
def test_a_line_is_for_some_processes(on: str, expected: str) -> None:
    script = Line('echo "it\'s"; exit $CODE', on).script
    ran = []
    for rank in range(4):
        env = {"HOROVOD_RANK": f"{rank}", "HOROVOD_LOCAL_RANK": f"{rank % 2}", "CODE": "3"}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) in [(3, "it's\n"), (0, "")]
        ran += [f"{rank}"] if done.returncode else []
    assert " ".join(ran) == expected


def gpus_of(line: Line, **env: str) -> str:
    words = ["bash", "-c", line.script]
    env |= {"HOROVOD_RANK": "5", "PATH": os.environ["PATH"]}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout


def test_each_process_that_has_several_gpus_sees_its_own() -> None:
    line = Line('echo "$CUDA_VISIBLE_DEVICES:$gpus"', gpus=2)
    assert gpus_of(line, HOROVOD_LOCAL_RANK="3") == "6,7:\n"
    assert gpus_of(line, HOROVOD_WORKER_SLOT="1", CUDA_VISIBLE_DEVICES="4,GPU-5,6,7") == "6,7:\n"
    assert gpus_of(replace(line, on="host"), SLURM_LOCALID="0") == "0,1:\n"
    assert gpus_of(replace(line, gpus=0), HOROVOD_LOCAL_RANK="3") == ":\n"


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
        (("0", "inf", "1"), "nothing leads"),
        (("0", "1", "0"), "nothing leads"),
        (("0", "1", "-1"), "nothing leads"),
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


def test_placeholders_and_variables() -> None:
    assert placeholders("a {{x}} {{ y-z }} {{}} {w}") == ["x", "y-z"]
    assert variable_of("lr-decay") == "LR_DECAY"
