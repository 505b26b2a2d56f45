"""What the documents say of the code is true: names, files, settings, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
MOST_FRAMES = 10


def frames() -> list[list[tuple[str, str]]]:
    """The numbered lines of "Life of an allreduce": names with the files that define them."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Life of an allreduce", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"^ *\d+\. (.*)$", section, re.MULTILINE)
    return [re.findall(r"`([\w:.]+)` \(`([\w/.]+)`\)", line) for line in lines]


def defines(path: Path, name: str) -> bool:
    """Whether the file defines a function, or a method of the class in front of the last dot."""
    text = path.read_text()
    owner, _, function = name.replace("::", ".").rpartition(".")
    if path.suffix == ".py":
        return bool(re.search(rf"^ *def {function}\(", text, re.MULTILINE)) and (
            owner in ("", "hvd") or bool(re.search(rf"^class {owner}\b", text, re.MULTILINE))
        )
    qualified = f"{owner}::{function}" if owner else function
    return bool(re.search(rf"^\S[^;\n]*\b{qualified}\(", text, re.MULTILINE))


def test_an_allreduce_has_few_frames() -> None:
    assert 5 <= len(frames()) <= MOST_FRAMES
    assert all(frames()), "each numbered line names a function and its file"


def test_the_frames_exist() -> None:
    missing = [
        f"{name} in {file}"
        for line in frames()
        for name, file in line
        if not (ROOT / file).is_file() or not defines(ROOT / file, name)
    ]
    assert not missing, "\n".join(missing)


def test_a_frame_that_does_not_exist_is_noticed() -> None:
    assert not defines(ROOT / "native/engine/engine.cc", "Engine::no_such_function")
    assert not defines(ROOT / "src/horovod/group.py", "Group.no_such_function")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


def files_named_in(text: str) -> set[str]:
    return set(re.findall(r"`((?:native|src|tests|docs|examples|benchmarks)/[\w/.-]+)`", text))


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/security.md"])
def test_files_that_are_named_exist(name: str) -> None:
    missing = [
        file for file in files_named_in((ROOT / name).read_text()) if not (ROOT / file).exists()
    ]
    assert not missing


def variables_in(*paths: str) -> set[str]:
    text = "".join((ROOT / path).read_text() for path in paths)
    return set(re.findall(r"\bHOROVOD_[A-Z_]+[A-Z]\b", text))


def test_every_setting_is_documented() -> None:
    known = variables_in("src/horovod/config.py", "src/horovod/runner/flags.py")
    assert variables_in("docs/settings.md") == known


def test_settings_without_effect_are_those_that_nothing_reads() -> None:
    ignored = (ROOT / "docs/settings.md").read_text().split("## Accepted without effect")[1]
    listed = set(re.findall(r"^\| `(HOROVOD_\w+)`", ignored, re.MULTILINE))
    flags_only = variables_in("src/horovod/runner/flags.py") - variables_in("src/horovod/config.py")
    assert flags_only <= listed


def test_the_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 250
