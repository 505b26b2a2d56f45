"""What is public: the modules that a table lists, and in each the names of its ``__all__``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.runner.doctor.exports import exported_names, module_file

ROOT = Path(__file__).resolve().parents[2]


def public_modules() -> list[str]:
    """The modules of the table "Public names"."""
    text = (ROOT / "docs/house.md").read_text().partition("## Public names")[2]
    found: list[str] = []
    for cell in re.findall(r"^\| (`horovod.*?) \|", text, re.MULTILINE):
        names = re.findall(r"`([\w.]+)`", cell)
        found += [
            name if name.split(".")[0] == "horovod" else f"{names[0]}.{name}" for name in names
        ]
    return found


PUBLIC = public_modules()


def has_list_of_names(text: str) -> bool:
    """Whether the source of a module has an ``__all__``."""
    targets = {
        ast.unparse(target)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    return "__all__" in targets


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_lists_its_names(module: str) -> None:
    path = module_file(module)
    assert path is not None
    assert has_list_of_names(path.read_text())
    assert exported_names(module)


def test_ruff_keeps_every_list_of_names_sorted() -> None:
    pytest.importorskip("ruff")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", "src/x.py", "-"],
        cwd=ROOT,
        input='__all__ = ["b", "a"]\na = b = 1\n',
        capture_output=True,
        text=True,
    )
    assert "RUF022" in done.stdout


def imported_modules(text: str) -> set[str]:
    """The modules of Horovod that the text of a program or of a document imports from."""
    return set(re.findall(r"^\s*(?:>>> )?(?:from|import) (horovod[\w.]*)", text, re.MULTILINE))


@pytest.mark.parametrize("pattern", ["README.md", "docs/*.md", "examples/**/*.py"])
def test_users_are_shown_public_modules_only(pattern: str) -> None:
    shown = {
        (path.name, module)
        for path in ROOT.glob(pattern)
        for module in imported_modules(path.read_text())
    }
    assert shown
    assert not {each for each in shown if each[1] not in PUBLIC}


def test_an_import_of_something_private_is_noticed() -> None:
    text = "x\n>>> from horovod._rank.a import B\n  import horovod.torch as hvd\nimport horovodx"
    assert imported_modules(text) - {"horovodx"} == {"horovod._rank.a", "horovod.torch"}
