from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

import horovod
from horovod._settings import TABLE
from horovod._settings.setting import Status
from horovod.errors import UsageError
from horovod.runner.cli.command import main
from horovod.runner.doctor.examination import examine_environment, examine_script
from horovod.runner.doctor.exports import arguments_of, exported_names, module_file
from horovod.runner.doctor.rules import ARGUMENTS, CALLS, Level

if TYPE_CHECKING:
    from pathlib import Path


def said(text: str) -> list[str]:
    """The remarks on a script, without its name."""
    return [str(remark).removeprefix("x.py:") for remark in examine_script(text, "x.py")]


@pytest.mark.parametrize(
    "text",
    [
        "import horovod.torch as hvd\nhvd.init()\nhvd.allreduce(x, name='a', op=hvd.Sum)",
        "import horovod.torch\nhorovod.torch.rank()",
        "from horovod.torch import DistributedOptimizer as D\nD(o, named_parameters=p)",
        "from horovod import torch as hvd\nhvd.init(comm=None)",
        "import horovod\nhorovod.run(f, num_proc=2)\nprint(horovod.__version__)",
        "from horovod.torch import *",
        "import horovod\nhorovod.run(f, use_mpi=False, use_gloo=False)",
        "import horovod.torch as hvd\nhvd.join()",
        "from horovod.tensorflow import elastic\nelastic.TensorFlowKerasState(m)",
        "import horovod.tensorflow as hvd\n@hvd.elastic.run\ndef f(): pass",
        "import horovod.runner.function.run\nfrom horovod.errors import HorovodInternalError",
        "from horovod.common.util import gpu_available\nfrom horovod.torch.mpi_ops import Sum",
        "import horovod.torch as hvd\nhvd.mpi_ops.allgather(x)\nhvd.__version__",
        "import os\nos.environ['PATH'] = 'x'\nos.environ['HOROVOD_RANK']",
        "import torch\ntorch.allreduc(average=True)\nhvd.nothing()",
        "from . import horovod\nfrom .horovod import x",
        "import os.path\nos.path.join('HOROVOD_X')",
    ],
)
def test_what_is_right_gets_no_remark(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("import horovod.nowhere", "1: fails: there is no module horovod.nowhere: Horovod has no"),
        (
            "import horovod.torch.mpi_lib_v2",
            "1: fails: there is no module horovod.torch.mpi_lib_v2: there is nothing to load",
        ),
        (
            "\nfrom horovod.runner.http.http_server import RendezvousServer",
            "2: fails: there is no module horovod.runner.http.http_server: the store that horovodr",
        ),
        ("import horovod.spark.driver", "1: fails: there is no module horovod.spark.driver: tasks"),
        (
            "import horovod.torch as hvd\nhvd.allreduc(x)",
            "2: fails: horovod.torch has no allreduc: did you mean allreduce?",
        ),
        (
            "import horovod.jax as hvd\nhvd.allreduce_async(x)",
            "2: fails: horovod.jax has no allreduce_async: did you mean allreduce?",
        ),
        (
            "import horovod.torch as hvd\nhvd.allreduce(\n  x,\n  average=False)",
            "4: deprecated: allreduce(average=…): use op=hvd.Average or op=hvd.Sum",
        ),
        (
            "from horovod.torch import allreduce\nallreduce(x, nam='a')",
            "2: fails: allreduce() has no argument nam: did you mean name?",
        ),
        (
            "import horovod.torch as hvd\nhvd.init(comm=world)",
            "2: fails: init(comm=…): takes no communicator of MPI",
        ),
        (
            "import horovod.torch as hvd\nif hvd.nccl_built(): pass",
            "2: changed: nccl_built() reports what is found on this machine",
        ),
        (
            "import horovod.torch as hvd\nif hvd.ddl_built(): pass",
            "2: changed: ddl_built() is False or 0",
        ),
        ("import horovod\nhorovod.run(f, np=2)", "2: deprecated: run(np=…): use num_proc"),
        (
            "import horovod\nhorovod.run(f, max_np=2)",
            "2: deprecated: run(max_np=…): use max_num_proc",
        ),
        (
            "import horovod\nhorovod.run(f, use_mpi=True)",
            "2: changed: run(use_mpi=…): mpirun starts the ranks as before, but",
        ),
        (
            "import horovod.torch as hvd\nhvd.join(hvd.local_rank())",
            "2: ignored: join(device): is only a hint where tensors on GPUs are in flight",
        ),
        (
            "import horovod.torch as hvd\nhvd.join(device=0)",
            "2: ignored: join(device=…): is only a hint",
        ),
        (
            "import horovod.torch as hvd\nhvd.mpi_threads_supported()",
            "2: changed: mpi_threads_supported() is False unless MPI moves the data",
        ),
        ("import horovod\nhorovod.run(f, procs=2)", "2: fails: run() has no argument procs"),
    ],
)
def test_what_changed_is_told_with_its_line(text: str, remark: str) -> None:
    (found,) = said(text)
    assert found.startswith(remark)


@pytest.mark.parametrize(
    "statement",
    [
        "os.environ['{}'] = '{}'",
        "os.environ.setdefault('{}', '{}')",
        "os.putenv('{}', '{}')",
        "os.environ.update({{'{}': '{}'}})",
        "os.environ.update({}='{}')",
        "environ['{}'] = '{}'",
    ],
)
@pytest.mark.parametrize(
    ("name", "value", "remark"),
    [
        ("HOROVOD_AUTOTUNE", "1", "honored: HOROVOD_AUTOTUNE: 1 tunes"),
        ("HOROVOD_AUTOTUNE", "perhaps", "fails: HOROVOD_AUTOTUNE='perhaps' is not an integer"),
        ("HOROVOD_CYCLE_TIME", "1", "ignored: HOROVOD_CYCLE_TIME: there is no cycle"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "1", "deprecated: HOROVOD_GLOO_TIMEOUT_SECONDS: use HORO"),
        ("HOROVOD_WITH_MPI", "1", "ignored: HOROVOD_WITH_MPI concerned the build"),
        ("HOROVOD_RANK", "1", "changed: HOROVOD_RANK is set by the launcher"),
        (
            "HOROVOD_FUSION_TRESHOLD",
            "1",
            "ignored: HOROVOD_FUSION_TRESHOLD is not a setting; did you mean HOROVOD_FUSION_THRESH",
        ),
    ],
)
def test_settings_in_the_script(statement: str, name: str, value: str, remark: str) -> None:
    (found,) = said(f"import os\nfrom os import environ\n{statement.format(name, value)}")
    assert found.startswith(f"3: {remark}")


def test_a_value_that_is_computed_is_not_judged() -> None:
    (found,) = said("import os\nos.environ['HOROVOD_AUTOTUNE'] = str(x)")
    assert found.startswith("2: honored")


@pytest.mark.parametrize("text", ["os.getenv('HOROVOD_X')", "os.environ['HOROVOD_X']"])
def test_a_script_that_reads_what_nobody_sets(text: str) -> None:
    assert said(f"import os\n{text}") == [
        "2: ignored: HOROVOD_X is not a setting; see docs/settings.md"
    ]


def test_every_setting_has_a_remark() -> None:
    remarks = examine_environment({**dict.fromkeys(TABLE, ""), "PATH": "x"})
    assert len(remarks) == len(TABLE)
    statuses = {Status.HONORED: Level.HONORED, Status.DEPRECATED: Level.DEPRECATED}
    for name, remark in zip(sorted(TABLE), remarks, strict=True):
        assert remark.place == "environment"
        assert name in remark.text
        expected = statuses.get(TABLE[name].status)
        assert expected is None or remark.level is expected


def test_no_python() -> None:
    with pytest.raises(UsageError, match=r"^x.py:2: not Python: "):
        examine_script("x = 1\ny = (", "x.py")


# -- what the rules are measured by


def test_what_is_exported_is_what_the_modules_say() -> None:
    hvd = pytest.importorskip("horovod.torch")
    assert exported_names("horovod.torch") == set(hvd.__all__)
    assert exported_names("horovod") == set(horovod.__all__)


def test_arguments_are_those_of_the_functions() -> None:
    hvd = pytest.importorskip("horovod.torch")
    known = 0
    for name in hvd.__all__:
        arguments = arguments_of("horovod.torch", name)
        if arguments is not None and inspect.isfunction(getattr(hvd, name)):
            assert arguments == set(inspect.signature(getattr(hvd, name)).parameters), name
            known += 1
    assert known > 40
    assert arguments_of("horovod.runner.function.run", "run") == set(
        inspect.signature(horovod.run).parameters
    )
    assert arguments_of("horovod.torch", "nothing") is None


def test_the_rules_are_about_what_exists() -> None:
    names = exported_names("horovod.torch") | {"run"}
    assert CALLS.keys() <= names
    for function, argument in ARGUMENTS:
        module = "horovod.runner.function.run" if function == "run" else "horovod.torch"
        known = arguments_of(module, function)
        assert known is not None
        assert argument in known, (function, argument)


def test_modules_are_found_without_importing_them() -> None:
    assert module_file("horovod.torch") is not None
    assert module_file("horovod._native") is not None
    assert module_file("horovod.nowhere") is None
    assert module_file("horovod.torch.nowhere.else") is None


# -- the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import horovod.torch as hvd\n")
    bad.write_text("import horovod.runner.mpi_run\n")
    assert main(["doctor", str(good)], {}) == 0
    assert capsys.readouterr().out == "nothing to change for Horovod\n"
    assert main(["doctor", str(good), str(bad)], {"HOROVOD_CYCLE_TIME": "1"}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("environment: ignored: HOROVOD_CYCLE_TIME")
    assert lines[1].startswith(f"{bad}:1: fails: there is no module horovod.runner.mpi_run")
    assert lines[2] == "1 will fail, 1 changed or lost their meaning"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor"], "name the scripts"),
        (["doctor", "--x"], "name the scripts"),
        (["doctor", "/nowhere/x.py"], "cannot read the script /nowhere/x.py"),
    ],
)
def test_a_wrong_command(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words, {}) == 2
    assert message in capsys.readouterr().err


def test_a_folder_is_read_with_all_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, fine = "import horovod.runner.mpi_run\n", "import horovod.torch as hvd\n"
    files = {
        "train.py": old,
        "models/net.py": fine,
        "models/old/net.py": old,
        "template.py": "{{ name }} = ",
        "notes.txt": old,
        ".git/hook.py": old,
        "env/pyvenv.cfg": "",
        "env/lib/x.py": old,
        "__pycache__/x.py": old,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert main(["doctor", str(tmp_path)], {}) == 1
    out = capsys.readouterr().out.splitlines()
    places = [line.removeprefix(f"{tmp_path}/").split(": ")[0] for line in out]
    assert places[:3] == ["template.py", "train.py:1", "models/old/net.py:1"]
    assert "template.py: hint: was left out: " in out[0]
    assert out[3] == "2 will fail, 0 changed or lost their meaning"
    assert main(["doctor", str(tmp_path / ".git" / "hook.py")], {}) == 1


def test_a_folder_without_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)], {}) == 2
    assert (
        f"there are no Python files and no shell scripts in {tmp_path}" in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["x.py", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words], {}) == 0
    assert "usage: horovodrun doctor SCRIPT_OR_FOLDER ..." in capsys.readouterr().out
