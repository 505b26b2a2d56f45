"""Rules about the Python code that no linter knows: the environment, imports, sizes, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

import pytest

import horovod

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "horovod"

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 80
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "numpy", "mpi4py", "ray", "pyspark")

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert found
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions_of(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def uses_of_the_environment(path: Path) -> list[str]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    findings = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in names:
                findings.append(f"{name_of(path)}:{node.lineno} os.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            findings += [
                f"{name_of(path)}:{node.lineno} from os import {alias.name}"
                for alias in node.names
                if alias.name in names
            ]
    return findings


def test_only_config_reads_the_environment() -> None:
    findings = [
        finding
        for path in python_files("src")
        if path != SOURCE / "_settings/config.py"
        for finding in uses_of_the_environment(path)
    ]
    assert not findings, "\n".join(findings)


def test_the_rule_about_the_environment_can_fail() -> None:
    assert uses_of_the_environment(SOURCE / "_settings/config.py")


# Where files are written that only this process can reach, or that the user of the sources writes.
WRITES_OF_ITS_OWN = {
    "horovod/_base/files.py": "the one module that opens what others could have put there",
    "horovod/_settings/document.py": "writes docs/settings.md into the sources",
    "horovod/spark/common/store.py": "declares and uses Store.write_text, which is no pathlib",
    "horovod/spark/common/data_folder.py": "calls Store.write_text",
    "horovod/spark/common/runs.py": "calls Store.write_text",
    "horovod/spark/common/serialization.py": "calls Store.write_text",
    "horovod/spark/keras/estimator.py": "in a temporary folder of its own",
    "horovod/spark/keras/model_bytes.py": "in a temporary folder of its own",
    "horovod/spark/keras/training.py": "in a temporary folder of its own",
    "horovod/spark/lightning/training.py": "in a temporary folder of its own",
    "horovod/testing/processes.py": "in a temporary folder of its own",
    "horovod/testing/rank_process.py": "in a temporary folder of its own",
    "horovod/_train/elastic/checkpoint/folder.py": "RemoteFolder opens files of fsspec",
}


def openings_for_writing(path: Path) -> list[str]:
    """Calls that create or change a file by its path."""
    findings = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        given = [*node.args, *(each.value for each in node.keywords)]
        modes = [str(each.value) for each in given if isinstance(each, ast.Constant)]
        # "x" follows no link either.
        writes = name == "open" and any(re.fullmatch("[rwabt+]*[wa+][bt]*", mode) for mode in modes)
        creates = ast.unparse(node.func) == "os.open" and "O_CREAT" in ast.unparse(node)
        touches = name in {"write_text", "write_bytes", "touch", "mkstemp"}
        if writes or creates or touches:
            findings.append(f"{name_of(path)}:{node.lineno} {ast.unparse(node)}")
    return findings


def test_files_are_written_where_no_link_is_followed() -> None:
    findings = [
        finding
        for path in python_files("src")
        if str(path.relative_to(SOURCE.parent)) not in WRITES_OF_ITS_OWN
        for finding in openings_for_writing(path)
    ]
    assert not findings, "\n".join(findings)


def modules_after(statement: str) -> set[str]:
    """The top-level modules and those of Horovod that a fresh Python holds after a statement."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("statement", ["import horovod", "import horovod; horovod.run"])
def test_the_package_loads_no_framework(statement: str) -> None:
    assert not modules_after(statement) & set(FRAMEWORKS)


def test_the_package_loads_neither_the_engine_nor_the_launcher() -> None:
    loaded = {name for name in modules_after("import horovod") if name.startswith("horovod")}
    assert loaded == {"horovod"}


def test_the_launcher_loads_no_engine() -> None:
    assert "horovod._native" not in modules_after("import horovod.runner.cli")


def test_named_tuples_have_no_second_base() -> None:
    """Python 3.10 refuses such a class, and mypy does not tell."""
    findings = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files("src")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and len(node.bases) > 1
        if any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    ]
    assert not findings, findings


def test_the_version_is_said_once() -> None:
    assert metadata.version("horovod") == horovod.__version__


def test_files_are_short() -> None:
    native = [path for path in (ROOT / "native").rglob("*") if path.suffix in (".cc", ".h")]
    findings = []
    for path in [*python_files("src", "tests", "examples"), *native]:
        num_lines = len(path.read_text().splitlines())
        if num_lines > MOST_LINES_OF_A_FILE:
            findings.append(f"{name_of(path)} has {num_lines} lines")
    assert not findings, "\n".join(findings)


def test_functions_are_short() -> None:
    findings = []
    for path in python_files("src", "tests", "examples"):
        for function in functions_of(path):
            num_lines = (function.end_lineno or 0) - function.lineno + 1
            if num_lines > MOST_LINES_OF_A_FUNCTION:
                findings.append(f"{name_of(path)}:{function.lineno} {function.name}: {num_lines}")
    assert not findings, "\n".join(findings)


def undocumented(path: Path) -> list[str]:
    """The public modules, classes, functions and methods of a file that have no docstring.

    Methods that override one of a base class, special methods, properties and methods that hold one
    statement say enough by their names.
    """
    tree = ast.parse(path.read_text())
    findings = [] if ast.get_docstring(tree) else [f"{name_of(path)}: the module"]
    for node in tree.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            findings.append(f"{name_of(path)}:{node.lineno} {node.name}")
        if isinstance(node, ast.ClassDef) and not node.bases:
            findings += [
                f"{name_of(path)}:{method.lineno} {node.name}.{method.name}"
                for method in node.body
                if isinstance(method, Function)
                and not method.name.startswith("_")
                and not method.decorator_list
                and len(method.body) > 1
                and ast.get_docstring(method) is None
            ]
    return findings


def test_public_names_have_docstrings() -> None:
    findings = [finding for path in python_files("src") for finding in undocumented(path)]
    assert not findings, "\n".join(findings)
