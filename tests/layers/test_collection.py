"""That pytest runs the tests of every folder."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).parents[1]
NEEDS_A_GPU = TESTS / "gpu"


def test_no_folder_with_tests_is_left_out_by_its_name(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {file.parent for file in TESTS.rglob("test_*.py")} - {NEEDS_A_GPU}
    assert TESTS / "dist" in folders
    for folder in folders:
        for part in folder.relative_to(TESTS).parts:
            assert not any(fnmatch.fnmatch(part, pattern) for pattern in left_out), folder
