"""The Python environment of a cell: making it, and running tests in it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from matrix_cells import ROOT, Cell, Suite
from matrix_result import Outcome, Result
from packaging.markers import Marker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIMIT_S = 1800.0
TAIL = 40  # lines that are printed of a failure
LOGS = ROOT / "build" / "matrix"
NOT_INSTALLED = "it cannot be installed"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-qq")
# A file of the new environment lets it see what another one holds, behind its own packages.
_SHARE = """
import pathlib, subprocess, sys, sysconfig
script = "import sysconfig; print(sysconfig.get_path('purelib'))"
theirs = subprocess.check_output([sys.argv[1], "-c", script], text=True).strip()
line = "import site; site.addsitedir(%r)" % sysconfig.get_path("purelib")
pathlib.Path(theirs, "shared.pth").write_text(line)
"""
_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    found[name] = importlib.metadata.version(name)
print(json.dumps(found))
"""


class Environment:
    """Where a cell is tested.

    Args:
        cell: of the table.
        suites: those that it names.
        place: the folder of the environment, unless a target of make has installed it.
    """

    def __init__(self, cell: Cell, suites: Sequence[Suite], place: Path) -> None:
        self._cell = cell
        self._suites = suites
        self._place = place
        self._folder = (Path(sys.prefix) if cell.environment else place) / cell.folder
        self._python = self._folder / "bin" / "python"
        self._stamp = self._folder / "matrix.stamp"
        self._log = LOGS / f"{cell.name}.log"

    def why_not(self) -> str:
        """Return why the cell cannot be tested here; empty if it can."""
        cell = self._cell
        if cell.environment and not self._python.exists():
            return f"there is no .venv/{cell.environment}: make .venv/{cell.environment}.stamp"
        if cell.python and not _interpreter(cell.python):
            return f"there is no Python {cell.python} here"
        if cell.marker and not Marker(cell.marker).evaluate():
            return f"its versions need {cell.marker}"
        return ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second run away from the same environment."""
        LOGS.mkdir(parents=True, exist_ok=True)
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / f"matrix-{self._cell.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another run of cell {self._cell.name}", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            self._log.write_text("")
            yield

    def make(self, result: Result) -> bool:
        """Install what the cell needs, unless it is there; return whether it is."""
        began_s, began_busy_s = time.monotonic(), _processor_s()
        if not self._cell.environment and not self._is_made():
            shutil.rmtree(self._folder, ignore_errors=True)
            for words in self._steps():
                if not self._succeeds(words, result, NOT_INSTALLED):
                    return False
            self._stamp.write_text(self._digest())
        if self._cell.python and not self._succeeds(self._build(), result, "it cannot be built"):
            return False
        result.install_s = round(time.monotonic() - began_s)
        result.processor_s += round(_processor_s() - began_busy_s)
        question = [self._python, "-c", _VERSIONS, *self._cell.shows]
        if not self._succeeds(question, result, "it lacks a package"):
            return False
        result.versions = json.loads(self._log.read_text().splitlines()[-1])
        result.python = result.versions.pop("python")
        result.megabytes = 0 if self._cell.environment == "." else _megabytes(self._folder)
        return True

    def _succeeds(self, words: Sequence[object], result: Result, otherwise: str) -> bool:
        code, output = self._run(words, os.environ)
        if code:
            result.outcome = Outcome.FAILED
            result.reason = f"{otherwise}: {_last_line(output)}"
            print(_tail(output), flush=True)
        return code == 0

    def _is_made(self) -> bool:
        found = self._stamp.exists() and self._stamp.read_text() == self._digest()
        return found and not self._cell.fresh

    def _digest(self) -> str:
        """Of all that decides what the environment holds."""
        cell = self._cell
        text = repr((cell.requirements, cell.options, cell.python, self._shares()))
        for each in cell.requirements:
            if each.startswith("-r "):
                text += (ROOT / each.split()[1]).read_text()
        return hashlib.sha256(text.encode()).hexdigest()

    def _steps(self) -> Iterator[list[object]]:
        """Yield the commands that make the environment."""
        cell = self._cell
        yield [_interpreter(cell.python) or sys.executable, "-m", "venv", self._folder]
        if self._shares():
            yield [sys.executable, "-c", _SHARE, self._python]
        words = [word for each in cell.requirements for word in each.split(maxsplit=1)]
        install = ROOT / "requirements" / "install.py"
        yield [sys.executable, install, self._python, *cell.options, *words]

    def _build(self) -> list[object]:
        """Return the command that installs Horovod as it is now."""
        # In the same folder each time, so that only what has changed is compiled.
        folder = f"build-dir=build/matrix/native-{self._cell.python}"
        options = ["--force-reinstall", "--no-build-isolation", "--no-deps"]
        return [self._python, *PIP, *options, "--config-settings", folder, ROOT]

    def _runs_pytest(self) -> bool:
        """Whether pytest runs in the environment, and not only the ranks."""
        return bool(self._cell.python) or not any(suite.variable for suite in self._suites)

    def _shares(self) -> bool:
        return self._runs_pytest() and not self._cell.python

    def test(self, suite: Suite, result: Result) -> None:
        """Run a suite, and add to the result what came of it."""
        began_s, began_busy_s = time.monotonic(), _processor_s()
        inside = self._runs_pytest()
        variables = {**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"}
        # What loads a framework does so as quickly as what it starts.
        paths = [str(ROOT / "tests" / "quick_imports"), os.environ.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if self._cell.python:  # no other Python's modules
            variables["PYTHONPATH"] = paths[0]
        if suite.variable:
            variables[suite.variable] = str(self._folder)
        python = self._python if inside else sys.executable
        code, output = self._run([python, "-m", "pytest", *suite.arguments], variables)
        result.test_s += round(time.monotonic() - began_s)
        result.processor_s += round(_processor_s() - began_busy_s)
        result.add_tests(output)
        if code:
            result.outcome = Outcome.FAILED
            result.reason = f"{suite.arguments[0]}: {_failures(output)}"
            print(_tail(output), flush=True)
        elif result.outcome == Outcome.NOT_RUN:
            result.outcome = Outcome.PASSED

    def _run(self, words: Sequence[object], variables: Mapping[str, str]) -> tuple[int, str]:
        """Run a command to its end, with a limit; the exit code and what it printed."""
        before = self._log.stat().st_size
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [str(word) for word in words],
                cwd=ROOT, env={**variables}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(LIMIT_S)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                log.write(f"\nno end within {LIMIT_S:g} s\n")
                code = 124
        with self._log.open() as log:
            log.seek(before)
            return code, log.read()


@cache
def _interpreter(version: str) -> str:
    """Return an interpreter of this version, such as "3.10"; empty if there is none, or no wish."""
    if not version:
        return ""
    script = ROOT / "wheels" / "pythons.sh"
    paths = subprocess.check_output([script], text=True).split()
    return next((path for path in paths if Path(path).name == f"python{version}"), "")


def _processor_s() -> float:
    """Return the time that the processors spent on the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _megabytes(folder: Path) -> int:
    """Return what the files below a folder take, each once."""
    sizes = {}
    for path, _, names in os.walk(folder):
        for name in names:
            entry = os.lstat(os.path.join(path, name))
            sizes[entry.st_dev, entry.st_ino] = entry.st_size
    return round(sum(sizes.values()) / 1e6)


def _tail(output: str) -> str:
    return "\n".join(f"  | {line}" for line in output.splitlines()[-TAIL:])


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _failures(output: str) -> str:
    """Return the names of the tests that failed, or the last line."""
    words = ("FAILED ", "ERROR ")
    names = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(words)]
    return ", ".join(names[:5]) or _last_line(output)
