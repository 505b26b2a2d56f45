"""Pages of the site in Chromium, read from files: they fit, their search finds, keys reach them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "site-pictures"
WIDTHS = (1280, 390)
# Each kind of page: in both schemes, with a picture.
SHOWN = ("index", "guide", "limits", "benchmarks", "failures", "migration", "api/torch")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that refuses to fetch anything that is not a file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    fetched: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: fetched.append(request.url))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors
    assert not [url for url in fetched if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_in_both_schemes(browser: Browser, site: Path, scheme: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    wrong = []
    for name in SHOWN:
        page.goto((site / f"{name}.html").as_uri())
        expected = "default" if scheme == "light" else "slate"
        assert page.get_attribute("body", "data-md-color-scheme") == expected
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=PICTURES / f"{name.replace('/', '-')}-{width}-{scheme}.png")
            wrong += [(name, width)] if page.evaluate(OVERFLOW) else []
    context.close()
    assert not wrong


def test_every_page_fits_on_a_phone(browser: Browser, site: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    wrong = []
    for file in sorted(site.glob("*.html")):
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        wrong += [file.name] if page.evaluate(OVERFLOW) > 0 else []
    page.close()
    assert not wrong


def test_the_search_finds_a_public_name(page: Page, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("broadcast_parameters")
    page.wait_for_selector(".md-search-result__link")
    found = page.eval_on_selector_all(
        ".md-search-result__link", "links => links.map(link => link.getAttribute('href'))"
    )
    assert any("api/torch.html" in link for link in found), found


def test_keys_reach_the_content_and_the_scheme(page: Page, site: Path) -> None:
    page.goto((site / "guide.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')")
    page.keyboard.press("Enter")
    focused = []
    for _ in range(12):
        page.keyboard.press("Tab")
        focused.append(
            page.evaluate(
                """(() => { const style = getComputedStyle(document.activeElement);
                return [document.activeElement.tagName, style.outlineStyle]; })()"""
            )
        )
    reached = [each for each in focused if each[0] != "BODY"]
    assert len(reached) > 8
    assert all(style != "none" or tag == "INPUT" for tag, style in reached), focused


def test_a_choice_of_a_tab_is_one_for_all_pages(page: Page, site: Path) -> None:
    page.goto((site / "guide.html").as_uri())
    assert page.is_visible("text=train_torch.py")
    page.click(".tabbed-labels >> text=JAX")
    assert page.is_visible("text=optax.sgd")
    assert not page.is_visible("text=torch.nn.Linear")


def test_the_version_is_shown(page: Page, site: Path) -> None:
    import horovod

    page.goto((site / "index.html").as_uri())
    assert horovod.__version__ in page.inner_text("header")
