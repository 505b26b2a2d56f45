"""The page on wide and narrow screens, light and dark, by keyboard, and for screen readers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from test_many_ranks import CULPRIT, simulated
from viewed_jobs import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENS = [(1280, 900), (390, 844)]
# Of the guidelines for accessible content (WCAG), for text of usual size.
LEAST_CONTRAST = 4.5

LOOKS = Path(__file__).with_name("looks.js").read_text()
FAULTS = "overlapping", "clipped", "wide", "nameless"
# While it is drawn the first time, a page on a busy machine may look otherwise.
SETTLED_S = 10.0


def check_looks(page: Page) -> None:
    page.get_by_role("heading", name=f"rank {CULPRIT} on host-97").wait_for()
    page.locator("#rows td", has_text="running").first.wait_for()
    none = {fault: [] for fault in (*FAULTS, "faint")}
    deadline = time.monotonic() + SETTLED_S
    while (faults := faults_of(page)) != none and time.monotonic() < deadline:
        time.sleep(0.2)
    assert faults == none


def faults_of(page: Page) -> dict[str, list[str]]:
    faults = {fault: page.evaluate(f"() => {LOOKS}.{fault}()") for fault in FAULTS}
    return {**faults, "faint": page.evaluate(f"(least) => {LOOKS}.faint(least)", LEAST_CONTRAST)}


def check_keyboard(page: Page) -> None:
    focused = []
    for _ in range(10):
        page.keyboard.press("Tab")
        focused.append(page.evaluate("() => document.activeElement.id"))
        if focused[-1] == "ask-trace":
            break
    wanted = ["strip", "table", "output-rank", "output", "ask-stacks", "ask-trace"]
    assert [each for each in focused if each in wanted] == wanted
    page.locator('#rows tr[tabindex="0"]').focus()
    for rank in range(1, 31):  # further than the rows that are drawn at first
        page.keyboard.press("ArrowDown")
        page.wait_for_function("(r) => document.activeElement.dataset.rank === r", arg=str(rank))
    page.keyboard.press("Enter")
    assert page.locator("#output-rank").input_value() == "30"
    # Screen readers say what changes at the top, and what the picture shows.
    assert page.locator("#verdicts").get_attribute("aria-live") == "polite"
    assert page.locator("#strip").get_attribute("aria-label") not in (None, "Ranks over time")


def test_nothing_overlaps_or_is_clipped_and_all_can_be_read(
    browser: Browser, tmp_path: Path
) -> None:
    with simulated(tmp_path) as (address, _, _):
        for width, height in SCREENS:
            for scheme in ("light", "dark"):
                screen = {"width": width, "height": height}
                with opened(browser, address, viewport=screen, color_scheme=scheme) as page:
                    check_looks(page)
                    check_keyboard(page)
