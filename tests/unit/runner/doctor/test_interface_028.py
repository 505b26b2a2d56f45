"""The table of what became of Horovod 0.28, and what the doctor says about shell scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod._settings import TABLE
from horovod._settings.document import update
from horovod.runner.cli.command import main
from horovod.runner.cli.options import parse, words_after_options
from horovod.runner.doctor.document import tables_of_fates
from horovod.runner.doctor.interface_028 import CHANGED_FLAGS, FLAGS, VARIABLES, fates
from horovod.runner.doctor.shell import examine_shell, is_shell_script

ROOT = Path(__file__).resolve().parents[4]


def said(text: str) -> list[str]:
    """The remarks on a script, without its name."""
    remarks = examine_shell(text, "x.sh", words_after_options())
    return [str(remark).removeprefix("x.sh:") for remark in remarks]


def test_every_variable_and_flag_of_028_is_accepted() -> None:
    assert [name for name in VARIABLES if name not in TABLE] == []
    known = words_after_options()
    assert [flag for flag in FLAGS if flag not in known] == []
    assert set(CHANGED_FLAGS) <= set(FLAGS)


def test_each_row_is_there_once_and_says_something() -> None:
    rows = list(fates())
    assert len({(row.kind, row.name) for row in rows}) == len(rows)
    assert all(row.text for row in rows)
    assert {row.kind for row in rows} == {"variable", "flag", "name"}


def test_flags_without_a_value_are_parsed_as_before() -> None:
    for flag in FLAGS:
        if words_after_options()[flag] == 0 and flag not in ("-v", "--version", "--jsrun"):
            assert parse(["-np", "2", flag, "x"]).command == ("x",), flag


def test_the_document_is_up_to_date() -> None:
    path = ROOT / "docs" / "upgrading.md"
    assert update(path.read_text(), tables_of_fates()) == path.read_text(), "run make docs"


@pytest.mark.parametrize(
    ("text", "remarks"),
    [
        (
            "export HOROVOD_CYCLE_TIME=5",
            ["1: ignored: HOROVOD_CYCLE_TIME: there is no cycle: an operation starts when it is"],
        ),
        (
            "#!/bin/sh\nHOROVOD_GPU_ALLREDUCE=NCCL pip install horovod",
            ["2: ignored: HOROVOD_GPU_ALLREDUCE concerned the build, which needs no settings"],
        ),
        (
            "env HOROVOD_GLOO_TIMEOUT_SECONDS=$SECONDS x; ",
            ["1: deprecated: HOROVOD_GLOO_TIMEOUT_SECONDS: use HOROVOD_START_TIMEOUT"],
        ),
        ("HOROVOD_FUSION_THRESHOLD=much", ["1: fails: HOROVOD_FUSION_THRESHOLD='much' is"]),
        ("HOROVOD_FUSION_TRESHOLD=1", ["1: ignored: HOROVOD_FUSION_TRESHOLD is"]),
        (
            "\nhorovodrun -np 4 --cycle-time-ms 3 \\\n  --disable-cache python x.py --gloo",
            [
                "2: ignored: --cycle-time-ms: there is no cycle",
                "2: ignored: --disable-cache: nothing is cached",
            ],
        ),
        (
            "/opt/bin/horovodrun --fusion-treshold-mb 3 python x.py",
            ["1: fails: horovodrun has no flag --fusion-treshold-mb: did you mean --fusion-thresh"],
        ),
        ("horovodrun --log-level=DEBUG -np 2 x", ["1: changed: --log-level: is the level of"]),
        ("python -m horovod.runner.launch -np 2 --mpi x", ["1: changed: --mpi: mpirun starts"]),
        # Nothing to say.
        ("# horovodrun --disable-cache\necho 'HOROVOD_CYCLE_TIME=1 is\nold'", []),
        ("horovodrun -np 4 -H a:4,b:4 --verbose python x.py --disable-cache", []),
        ("mpirun --disable-cache x", []),
    ],
)
def test_shell_scripts(text: str, remarks: list[str]) -> None:
    found = said(text)
    assert len(found) == len(remarks), found
    for line, start in zip(found, remarks, strict=True):
        assert line.startswith(start), line


def test_which_files_are_shell_scripts() -> None:
    assert is_shell_script("a.sbatch", "")
    assert is_shell_script("a", "#!/usr/bin/env bash\n")
    assert not is_shell_script("a.py", "#!/usr/bin/env python\nimport sh")
    assert not is_shell_script("a", "x")


def test_the_doctor_reads_both_kinds_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text("import horovod.torch as hvd\nhvd.allreduce(x, average=True)\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\nsrun horovodrun --torus-alreduce x\n")
    assert main(["doctor", str(tmp_path)], {}) == 1
    text = capsys.readouterr().out
    assert f"{tmp_path}/job.sbatch:2: fails: horovodrun has no flag --torus-alreduce" in text
    assert f"{tmp_path}/a.py:2: deprecated:" in text
