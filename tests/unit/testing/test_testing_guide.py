"""The examples of docs/testing.md do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "testing.md"


def blocks() -> Iterator[str]:
    """The Python code of the guide."""
    for match in re.finditer(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        yield match[1]


def test_the_example_passes_in_one_process_of_pytest(tmp_path: Path) -> None:
    code, tests, clock = blocks()
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "test_train.py").write_text(tests)
    (tmp_path / "test_clock.py").write_text(
        f"def test():\n{re.sub('^', '    ', clock, flags=re.M)}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
