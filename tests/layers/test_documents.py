"""What the documents say of the code is true: names, files, settings, links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from horovod._settings import TABLE
from horovod._settings.document import run, tables_of_settings, update
from horovod._settings.setting import Status
from horovod.errors import UsageError
from horovod.runner.cli.document import tables_of_options

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/**/*.md",
        "examples/**/*.md",
        "apps/**/*.md",
    )
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


def files_named_in(text: str) -> set[str]:
    """Paths from the root of the repository, in prose, tables, links and commands."""
    folders = r"\.ci|benchmarks|docs|examples|native|requirements|src|tests"
    return set(re.findall(rf"(?<![\w/.~-])((?:{folders})/[\w/.-]*\w)", text))


# Decisions and the changelog speak of what was there at their time.
@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile", "docs/*.md"]
)
def test_files_that_are_named_exist(name: str) -> None:
    missing = [
        f"{document.name}: {file}"
        for document in ROOT.glob(name)
        for file in files_named_in(document.read_text())
        if not (ROOT / file).exists()
    ]
    assert not missing


def test_a_file_that_does_not_exist_is_noticed() -> None:
    text = "`native/no_such.cc`, [it](docs/no_such.md), python examples/no/such.py --x, build/src/y"
    assert files_named_in(text) == {"native/no_such.cc", "docs/no_such.md", "examples/no/such.py"}


def test_the_map_lists_every_folder_of_native_code_once() -> None:
    listed = re.findall(
        r"^\| `(native/\w+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE
    )
    folders = [f"native/{path.name}" for path in (ROOT / "native").iterdir() if path.is_dir()]
    assert sorted(listed) == sorted(folders)


def test_the_map_lists_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    modules = [
        path.name for path in (ROOT / "src/horovod").glob("[!_]*[!_]") if "." not in path.name
    ]
    modules += [path.name for path in (ROOT / "src/horovod").glob("[!_]*.py")]
    assert [name for name in modules if f"`src/horovod/{name}`" not in text] == []


def variables_in(*paths: str) -> set[str]:
    text = "".join((ROOT / path).read_text() for path in paths)
    return set(re.findall(r"\b_?HOROVOD_[A-Z0-9_]+[A-Z0-9]\b", text))


@pytest.mark.parametrize(
    ("path", "tables"),
    [("docs/settings.md", tables_of_settings()), ("docs/launching.md", tables_of_options())],
)
def test_the_tables_of_settings_and_options_are_up_to_date(
    path: str, tables: dict[str, list[str]]
) -> None:
    text = (ROOT / path).read_text()
    assert update(text, tables) == text, "run make docs"


def test_the_tables_of_the_benchmarks_are_those_of_their_reports() -> None:
    pytest.importorskip("torch")
    words = ["benchmarks/document.py", "--check", "docs/benchmarks.md"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr


def test_a_table_that_is_not_up_to_date_is_noticed(tmp_path: Path) -> None:
    copy = tmp_path / "settings.md"
    copy.write_text((ROOT / "docs/settings.md").read_text().replace("| 1024 |", "| 1023 |"))
    tables = tables_of_settings()
    assert run(["--check", str(copy)], "document", tables) == 1
    assert run([str(copy)], "document", tables) == 0
    assert run(["--check", str(copy)], "document", tables) == 0


def test_a_document_without_tables_is_refused() -> None:
    with pytest.raises(UsageError, match="begin honored"):
        update("# Settings\n", tables_of_settings())


def test_every_variable_that_the_code_names_is_a_setting() -> None:
    sources = [str(path.relative_to(ROOT)) for path in (ROOT / "src/horovod").rglob("*.py")]
    misspelt = {"HOROVOD_FUSION_TRESHOLD"}  # the example of a suggestion
    assert variables_in(*sources) - misspelt == set(TABLE)
    assert variables_in("docs/settings.md") == set(TABLE)


def test_settings_without_effect_say_why() -> None:
    silent = [
        setting.name
        for setting in TABLE.values()
        if not setting.meaning and setting.status is not Status.BUILD
    ]
    assert not silent


def test_the_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 250


def test_the_tests_that_contributing_chooses_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    chosen = re.findall(r'PYTEST="(tests/[\w/]+) -k (\w+)"', text)
    assert chosen
    for folder, word in chosen:
        sources = list((ROOT / folder).rglob("test_*.py"))
        assert any(
            word in path.name or re.search(rf"^def test_\w*{word}", path.read_text(), re.MULTILINE)
            for path in sources
        ), f"{folder} -k {word}"
    native = "".join(path.read_text() for path in (ROOT / "native/tests").glob("test_*.cc"))
    for word in re.findall(r"native_tests (\w+)", text):
        assert re.search(rf'^TEST\("[^"]*{word}', native, re.MULTILINE), f"native_tests {word}"


def section_of_readme(title: str) -> str:
    return (ROOT / "README.md").read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_figures_of_readme_are_those_of_the_benchmarks() -> None:
    """Each was measured: docs/benchmarks.md has the number."""
    table = [line for line in section_of_readme("Speed").splitlines() if line.startswith("| ")]
    figures = {figure for line in table for figure in re.findall(r"([\d.]+) (?:ms|µs|s)\b", line)}
    measured = set(re.findall(r"\d+(?:\.\d+)?", (ROOT / "docs/benchmarks.md").read_text()))
    assert len(figures) > 10
    assert figures <= measured


def test_readme_installs_every_extra_and_no_other() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    extras = project.split("[project.optional-dependencies]\n", 1)[1].split("\n[", 1)[0]
    declared = re.findall(r"^(\w+) = ", extras, re.MULTILINE)
    assert set(re.findall(r"\[(\w+)\](?!\()", section_of_readme("Install"))) == set(declared)
