"""That pytest runs the tests of every folder."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).parents[1]
# What has a target of its own in the Makefile: test-gpu, test-jax, and so on.
BY_THEMSELVES = {
    TESTS / name
    for name in (
        "dashboard",
        "gpu",
        "jax",
        "libraries",
        "loaders",
        "loggers",
        "mxnet",
        "notebooks",
        "ray",
        "spark",
    )
}


def test_no_folder_with_tests_is_left_out_by_its_name(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {file.parent for file in TESTS.rglob("test_*.py")} - BY_THEMSELVES
    assert TESTS / "dist" in folders
    makefile = (TESTS.parent / "Makefile").read_text()
    assert all(f"pytest tests/{folder.name} " in makefile for folder in BY_THEMSELVES)
    for folder in folders:
        for part in folder.relative_to(TESTS).parts:
            assert not any(fnmatch.fnmatch(part, pattern) for pattern in left_out), folder
