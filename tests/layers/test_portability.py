"""docs/portability.md lists each file that uses a call that not every system has, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from portability import LINUX, POSIX, code_of, tables, uses

from horovod._settings.document import update

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "portability.md"


def test_the_list_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    remedy = f"run: python tests/layers/portability.py {DOCUMENT}"
    assert update(text, tables()) == text, remedy


def test_each_pattern_finds_something() -> None:
    """A pattern without a file is misspelled, or what it is for is gone."""
    found = uses().values()
    used = {name for both in found for names in both for name in names}
    assert used == LINUX.keys() | POSIX.keys()


@pytest.mark.parametrize(
    ("suffix", "text", "code"),
    [
        (".cc", "a();  // eventfd()\n/* epoll\n */b();", "a();  \nb();"),
        (".py", '"""memfd."""\nx = "/proc/1"  # prctl', '\nx = "/proc/1" '),
    ],
)
def test_comments_and_docstrings_do_not_count(suffix: str, text: str, code: str) -> None:
    assert code_of(text, suffix).rstrip() == code.rstrip()
