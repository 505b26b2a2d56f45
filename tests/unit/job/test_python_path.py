"""What a Python started by this one finds: real interpreters in environments over another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import horovod
from horovod._job.python_path import with_horovod_on_path

_ROOT = str(Path(horovod.__file__).resolve().parent.parent)
_SHOW = """
import sys
sys.path.append(sys.argv[1])
from horovod._job.python_path import with_horovod_on_path
print(with_horovod_on_path({}).get("PYTHONPATH"))
"""


def _shown_in(environment: Path, *, names_horovod: bool) -> str:
    """Return what an environment without packages adds to PYTHONPATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    if names_horovod:
        (packages / "shared.pth").write_text(f"import site; site.addsitedir({_ROOT!r})\n")
    python = str(environment / "bin/python")
    command = [python, "-c", _SHOW, _ROOT]
    shown = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def test_an_environment_over_another_keeps_its_own_libraries_first(tmp_path: Path) -> None:
    assert _shown_in(tmp_path, names_horovod=True) == "None"


def test_a_folder_that_the_program_added_is_passed_on(tmp_path: Path) -> None:
    assert _shown_in(tmp_path, names_horovod=False) == _ROOT


def test_a_path_that_has_horovod_stays_as_it_is() -> None:
    environ = {"PYTHONPATH": f"/elsewhere:{_ROOT}"}
    assert with_horovod_on_path(environ) == environ
