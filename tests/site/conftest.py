"""The site, built once, and the browser of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import browser  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "docs" / "site"), str(ROOT / "benchmarks")]
DEADLINE_S = 180.0


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; the build fails on each warning of MkDocs."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
