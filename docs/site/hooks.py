"""Hooks of MkDocs for the site: generated pages, links, marks of blocks, plots, the calculator."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import api
import markup
import models
import plots
import repository

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = repository.ROOT
FOLDER = Path(__file__).resolve().parent
_PLOT = re.compile(r"<!-- plot: (.*?) -->")
_TITLES = {  # of models; the calculator begins with the first
    "resnet101": "ResNet-101",
    "inception_v3": "Inception V3",
    "transformer": "Transformer encoder",
    "vgg16": "VGG-16",
}
_outside: dict[str, str] = {}  # files of the repository by the pages that show them


def on_config(config: MkDocsConfig) -> None:
    """Add the version and the pages of the API to the settings."""
    source = (ROOT / "src/horovod/__init__.py").read_text()
    version = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    assert version is not None
    config.site_name = f"Horovod {version[1]}"
    for part in config.nav:
        for entry in next(iter(part.values())):
            if isinstance(entry, dict) and entry.get("API"):
                entry["API"] = [f"api/{name}.md" for name in _api_order()]


def _api_order() -> list[str]:
    return [*api.FIRST, *(name for name in api.PAGES if name not in api.FIRST)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of the API and of files of the repository."""
    seeds = {
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benchmarks/README.md",
    }
    _outside.update(repository.pages_outside_docs({*seeds, "examples", "docs/decisions"}))
    for page, path in _outside.items():
        text = repository.text_of(path)
        if text is None:
            file = File.generated(config, page, abs_src_path=str(ROOT / path))
        else:
            file = File.generated(config, page, content=text)
        files.append(file)
    for page, text in api.pages().items():
        files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a document with links of the site, titles of blocks, and tabs."""
    name = page.file.src_uri
    if name == "index.md":
        page.meta["hide"] = ["navigation"]
    if name not in _outside and not name.startswith("api/"):
        markdown = repository.with_links_of_site(markdown, f"docs/{name}")
    return markup.rendered(markdown)


def on_page_content(html: str, **_: object) -> str:
    """Return the HTML of a page with its plots and the calculator."""
    html = _PLOT.sub(lambda found: plots.plot(found[1]), html)
    return html.replace("<!-- calculator -->", calculator()) if "<!-- calculator" in html else html


def calculator() -> str:
    """Return the calculator with its module in the page: browsers load none from files."""
    data = {name: {"title": _TITLES[name]} | data_of_model(name) for name in _TITLES}
    return (
        (FOLDER / "limits.html").read_text()
        + f'<script type="application/json" id="limits-models">{json.dumps(data)}</script>\n'
        + f'<script type="module">\n{module_of_calculator()}</script>\n'
    )


def module_of_calculator() -> str:
    """Return the cost model and the page that uses it as one module."""
    module = (FOLDER / "cost_model.js").read_text() + (FOLDER / "limits.js").read_text()
    return re.sub(r"^import .*$", "", module, flags=re.MULTILINE)


def data_of_model(name: str) -> dict[str, Any]:
    """Return a model of benchmarks/models.py: times in seconds, and elements of each gradient."""
    model = models.models()[name]
    return {
        "forward": model.forward_s,
        "backward": model.backward_s,
        "gradients": [[each.elements, each.ready] for each in model.gradients],
    }
