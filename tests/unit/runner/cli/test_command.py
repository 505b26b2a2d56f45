"""The parts of the command line that start no process."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import horovod
from horovod._rank.libraries import gpu
from horovod.runner.checks import check_build
from horovod.runner.checks.check_build import build_report
from horovod.runner.cli.command import main
from horovod.runner.placing import this_machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag], {}) == 0
    assert capsys.readouterr().out == f"{horovod.__version__}\n"


def test_check_build_needs_no_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-cb"], {}) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Horovod v{horovod.__version__}:\n")
    assert "[X] native shared memory" in text


def test_check_build_marks_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(
        "horovod._rank.libraries.gpu.find_driver", lambda: gpu.Search(None, "tried:\n  libcuda.so")
    )
    monkeypatch.setattr(
        "horovod._rank.libraries.gpu.find_nccl", lambda: gpu.Search(None, "tried libnccl.so.2")
    )
    monkeypatch.setattr("shutil.which", lambda name: None)
    lines = build_report().splitlines()
    for name in ("TensorFlow", "Keras", "PyTorch", "MXNet", "JAX", "GPU", "NCCL", "MPI"):
        assert f"    [ ] {name}" in lines
    why = build_report(verbose=True)
    assert "[ ] PyTorch: no module torch for this Python\n" in why
    assert "    [ ] GPU: tried:\n        libcuda.so\n" in why
    assert "[ ] NCCL: tried libnccl.so.2\n" in why
    assert "[ ] MPI: no mpirun on the path; horovodrun does not need it\n" in why
    monkeypatch.setattr("shutil.which", lambda name: f"/opt/{name}")
    assert "[X] MPI: /opt/mpirun may start the ranks\n" in build_report(verbose=True)


def test_check_build_names_versions_and_places(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(origin="/place/__init__.py", submodule_search_locations=None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2")
    driver = gpu.Driver("/lib/libcuda.so.1", 13010, 2)
    nccl = gpu.Nccl("/lib/libnccl.so.2", 22907, "hangs on Tuesdays")
    monkeypatch.setattr("horovod._rank.libraries.gpu.find_driver", lambda: gpu.Search(driver, ""))
    monkeypatch.setattr("horovod._rank.libraries.gpu.find_nccl", lambda: gpu.Search(nccl, ""))
    assert "    [X] PyTorch 1.2\n" in build_report()
    text = build_report(verbose=True)
    assert "    [X] PyTorch 1.2: /place/__init__.py\n" in text
    assert "    [X] GPU (CUDA 13.1, 2 devices): /lib/libcuda.so.1\n" in text
    assert "    [X] NCCL 2.29.7: /lib/libnccl.so.2 (hangs on Tuesdays)\n" in text
    assert f"at {sys.executable}\n" in text
    assert re.search(r"\[X\] native: \w+ kernels, ", text)


def test_check_build_promises_no_framework_without_an_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = SimpleNamespace(origin="/place/__init__.py")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: spec if name == "tensorflow" else None
    )
    assert re.search(r"\[ \] TensorFlow\S* ?\S* \(found, but not supported", build_report())


def test_check_build_survives_an_engine_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_build, "engine_kernels", lambda: ("", "no such symbol"))
    assert "    [ ] native shared memory: no such symbol\n" in build_report(verbose=True)


def test_a_driver_without_devices_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = gpu.Driver("/opt/libamdhip64.so.6", 60000, 0)
    monkeypatch.setattr("horovod._rank.libraries.gpu.find_driver", lambda: gpu.Search(driver, ""))
    assert "    [ ] GPU (HIP, 0 devices)\n" in build_report()


def test_without_a_word_it_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: horovodrun [options] COMMAND")
    assert "for example: horovodrun -np 2 python train.py\n" in err
    assert err.count("\n") <= 4


def test_help_fits_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"], {})
    assert caught.value.code == 0
    assert "-np N" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("true", "-np is missing"),
        ("-np 2", "no command was given"),
        ("-np 2 --", "no command was given"),
        ("-np 0 true", "0 ranks"),
        ("-np 4 -H localhost:2 true", "4 ranks were requested, but only 2 slots"),
        ("-np 2 -H a@b@c:1 true", "cannot read the host 'a@b@c:1'"),
        ("-np 2 --hostfile /nowhere/f true", "cannot read the hostfile /nowhere/f"),
        ("-np 2 --network-interface nowhere0 true", "no network interface 'nowhere0'"),
        ("-np 2 --fusion-threshold-mb -1 true", "must be at least 0"),
        ("-np 2 --start-timeout 0 true", "must be at least 1"),
        ("-np 2 --unknwon true", "unknown option --unknwon"),
        ("-np 2 --output-filename /dev/null/x true", "cannot write the output"),
    ],
)
def test_a_wrong_line_costs_one_line(
    line: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(line.split(), {}) == 2
    text = capsys.readouterr().err
    assert text.startswith("horovodrun: ")
    assert message in text
    assert text.count("\n") == 1


def test_the_start_timeout_of_the_environment_is_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-np", "1", "true"], {"HOROVOD_START_TIMEOUT": "soon"}) == 1
    assert "HOROVOD_START_TIMEOUT='soon' is not a number" in capsys.readouterr().err


def test_hostfile_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=1\n")
    assert main(["-np", "2", "--hostfile", str(hostfile), "true"], {}) == 2
    assert "only 1 slot is available on" in capsys.readouterr().err


def test_local_hosts() -> None:
    assert this_machine.is_local("localhost")
    assert this_machine.is_local("127.0.0.1")
    assert this_machine.is_local("127.0.0.53")
    assert this_machine.is_local("::1")
    assert not this_machine.is_local("192.0.2.1")


def test_the_hosts_of_an_allocation_need_not_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"}
    assert main(["--dry-run", "x"], slurm) == 0
    text = capsys.readouterr().out
    assert text.startswith("3 ranks on 2 hosts")
    assert "host n1" in text
    assert main(["-np", "2", "--dry-run", "x"], slurm) == 0
    assert "2 ranks on 1 host" in capsys.readouterr().out
    assert main(["-np", "1", "-H", "a:1", "--dry-run", "x"], slurm) == 0
    assert "host a" in capsys.readouterr().out


def test_horovodrun_that_was_started_once_per_rank_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environ = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "7"}
    assert main(["-np", "4", "x"], environ) == 2
    message = capsys.readouterr().err
    assert "Slurm started horovodrun 4 times" in message
    assert "start the script itself" in message
