"""Links and anchors of the site, and those of README into the documents, lead somewhere."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import api
import griffe
import pytest
import repository

ROOT = Path(__file__).resolve().parents[2]
# Attributes of elements that a browser fetches by itself.
FETCHED = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "src"}


@dataclass
class Page(HTMLParser):
    """What a page refers to, and what others can refer to."""

    links: set[str] = field(default_factory=set)
    fetched: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=lambda: {"", "__top"})

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of the attributes of an element."""
        values = dict(attrs)
        self.anchors |= {values[name] or "" for name in ("id", "name") if name in values}
        if tag == "a" and values.get("href"):
            self.links.add(values["href"] or "")
        if tag in FETCHED and values.get(FETCHED[tag]):
            self.fetched.add(values[FETCHED[tag]] or "")


@cache
def page_in(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


def fault_of(link: str, file: Path) -> str:
    """Return what is wrong with a link of a page, or nothing."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https", "mailto"):
        return ""
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if parts.scheme or link.startswith("/"):
        return f"{file.name}: {link} is not relative"
    if not target.is_file():
        return f"{file.name}: {link} leads to no file"
    if target.suffix == ".html" and unquote(parts.fragment) not in page_in(target).anchors:
        return f"{file.name}: {link} leads to no anchor"
    return ""


def test_each_link_leads_somewhere(site: Path) -> None:
    files = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(files) > 100
    faults = [fault_of(link, file) for file in files for link in page_in(file).links]
    assert not [fault for fault in faults if fault]


def test_a_link_that_leads_nowhere_is_noticed(site: Path) -> None:
    index = site / "index.html"
    assert fault_of("no_such.html", index)
    assert fault_of("elastic.html#no-such-section", index)
    assert fault_of("/elastic.html", index)
    assert not fault_of("elastic.html#a-script", index)


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file in site.rglob("*.html"):
        foreign = {link for link in page_in(file).fetched if urlsplit(link).netloc}
        assert not foreign, file
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?https?:", styles)


@pytest.mark.parametrize("name", ["README.md", "apps/landscapes/README.md"])
def test_links_to_sections_of_documents_exist(site: Path, name: str) -> None:
    text = (ROOT / name).read_text()
    faults = []
    for target in re.findall(r"\]\((?!https?:|#)([^)\s]+\.md#[^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        page = site / repository.page_of(path).replace(".md", ".html")
        if page.exists():
            faults += [target] if anchor not in page_in(page).anchors else []
    assert not faults


def test_each_public_name_has_an_anchor(site: Path) -> None:
    package = griffe.load("horovod", search_paths=[str(ROOT / "src")], allow_inspection=False)
    anchors = {each for path in site.glob("api/*.html") for each in page_in(path).anchors}
    names = api.public_names(package)
    missing = [
        f"{module}.{name}"
        for module in names
        for name in names[module]
        if f"{module}.{name}" not in anchors
    ]
    assert not missing
    assert sum(map(len, names.values())) > 700
