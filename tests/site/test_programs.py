"""The programs of the site's own pages run, and print what the pages show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from pages import PAGES_OF_SITE, Block, blocks_of, files_of
from test_commands import Place, comparable, expected_lines, python_path_of

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = [block for page in PAGES_OF_SITE for block in blocks_of(page)]
ELSEWHERE = "".join(block.text for block in blocks_of("README.md") if block.mark == "run")
RUN = [block for block in BLOCKS if block.mark == "run" and block.text not in ELSEWHERE]
PRINTED = [block for block in BLOCKS if block.after("output of:")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with the files of each page."""
    made = {page: tmp_path_factory.mktemp("page") for page in PAGES_OF_SITE}
    for page, folder in made.items():
        for name, text in files_of(page).items():
            (folder / name).write_text(text)
    return made


@pytest.mark.parametrize("block", RUN, ids=str)
def test_the_programs_run(block: Block, folders: dict[str, Path]) -> None:
    result = Place(folders[block.page], python_path_of(block)).run(block.text)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.split(">:", 1)[-1] for line in result.stdout.splitlines()]
    assert expected_lines(block.text)
    for pattern in expected_lines(block.text):
        assert [line for line in lines if re.search(pattern, line)], result.stdout


def without_measures(text: str) -> list[str]:
    """Return the lines of an output, without prefixes, process ids, dates, times and shares."""
    masked = re.sub(r"\d+(?:\.\d+)? (ms|s|%)(?!\w)", r"N \1", comparable(text))
    masked = re.sub(r"^\[[\d-]+ [\d:]+ ", "[", masked, flags=re.MULTILINE)
    return [line for line in masked.splitlines() if line.strip() not in ("", "…")]


def test_lines_are_compared_without_measures() -> None:
    assert without_measures("[0]<stderr>:waited 2.5 s\n…\nby 12 %") == ["waited N s", "by N %"]


@pytest.mark.parametrize("block", PRINTED, ids=str)
def test_the_output_is_as_printed(block: Block, folders: dict[str, Path]) -> None:
    """Each line is there, in this order, also between others; `…` ends one that goes on."""
    folder = folders[block.page]
    result = Place(folder, python_path_of(block)).run(f"{block.after('output of:')} || true")
    printed = (result.stdout + result.stderr).replace(f"{folder}/", "")
    remaining = iter(without_measures(printed))
    for line in without_measures(block.text):
        wanted = line.removesuffix("…")
        assert any(each.startswith(wanted) for each in remaining), f"{line}\n{printed}"
