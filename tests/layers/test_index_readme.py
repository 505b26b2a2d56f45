"""The README as an index shows it: with no link to a file that is not there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def index_readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("index_readme", ROOT / "wheels/index_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_an_address_links_become_text(index_readme: Any) -> None:
    text = "[guide](docs/guide.md), [here](#speed), [other](https://a.b) ![a ring](docs/ring.svg)"
    expected = "guide, [here](#speed), [other](https://a.b) *a ring*"
    assert index_readme.for_index(text, None) == expected


def test_with_an_address_links_are_absolute(index_readme: Any) -> None:
    text = "[guide](docs/guide.md#a) ![a ring](docs/ring.svg)"
    expected = "[guide](https://h/p/blob/main/docs/guide.md#a) ![a ring](https://h/p/raw/main/docs/ring.svg)"
    assert index_readme.for_index(text, "https://h/p/") == expected


def test_whole_readme(index_readme: Any) -> None:
    project = {"urls": {"Source": "https://h/p"}}
    for given in ({}, project):
        readme = index_readme.dynamic_metadata({}, given)["readme"]
        assert readme["content-type"] == "text/markdown"
        assert "](docs/" not in readme["text"]
        assert "](ARCHITECTURE.md)" not in readme["text"]
    assert "![horovodrun starts" in readme["text"]


def test_unknown_setting_is_refused(index_readme: Any) -> None:
    with pytest.raises(ValueError, match="no settings"):
        index_readme.dynamic_metadata({"source": "x"}, {})
