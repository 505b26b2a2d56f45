"""The page in Chromium, painted on as people do: with the server, and with its own model."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from on_page import click, drag, map_of, new_picture, picture_of, start_flat
from PIL import Image

from landscapes.palette import GRASS, MOUNTAINS, RIVER, SKY, SNOW, WATER, paint_labels

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page


def test_a_stroke_paints_whole_cells_and_the_picture_changes_where_it_is(page: Page) -> None:
    start_flat(page, SKY, GRASS)
    before, picture = map_of(page), picture_of(page)
    page.locator("#palette button", has_text="water").click()
    page.get_by_role("button", name="12 cells").click()
    with new_picture(page):
        drag(page, (0.3, 0.8), (0.7, 0.8))
    after = map_of(page)
    painted = after != before
    assert set(after[painted]) == {WATER}
    rows, columns = np.nonzero(painted)
    assert (rows.min(), rows.max() + 1) == pytest.approx((0.8 * 64 - 6, 0.8 * 64 + 6), abs=2)
    assert (columns.min(), columns.max()) == pytest.approx((0.3 * 64 - 6, 0.7 * 64 + 6), abs=2)
    change = np.abs(picture_of(page) - picture).mean(-1)
    assert change[painted].mean() > 3 * change[:20].mean()
    assert change[painted].mean() > 5


def test_fill_changes_one_region_and_undo_and_redo_restore_it(page: Page) -> None:
    start_flat(page, SKY, GRASS)
    before, picture = map_of(page), picture_of(page)
    page.keyboard.press("7")
    page.keyboard.press("f")
    with new_picture(page):
        click(page, 0.5, 0.9)
    filled = map_of(page)
    assert (filled[:32] == SKY).all()
    assert (filled[32:] == SNOW).all()
    with new_picture(page):
        page.keyboard.press("Control+z")
    assert np.array_equal(map_of(page), before)
    assert np.abs(picture_of(page) - picture).max() <= 1
    with new_picture(page):
        page.get_by_role("button", name="Redo").click()
    assert np.array_equal(map_of(page), filled)
    assert page.get_by_role("button", name="Redo").is_disabled()


def test_lines_get_narrower_toward_the_horizon(page: Page) -> None:
    start_flat(page, SKY, GRASS)
    page.locator("#palette button", has_text="river").click()
    assert page.locator("[data-tool=line]").get_attribute("aria-pressed") == "true"
    drag(page, (0.5, 0.98), (0.5, 0.55))
    widths = (map_of(page) == RIVER).sum(1)
    assert 1 <= widths[37] < widths[60]
    assert widths[:32].sum() == 0
    page.keyboard.press("Control+z")
    assert (map_of(page) != RIVER).all()


def test_erased_cells_are_empty_and_are_painted_as_what_is_around(page: Page) -> None:
    start_flat(page, SKY, GRASS)
    picture = picture_of(page)
    page.keyboard.press("e")
    with new_picture(page):
        drag(page, (0.3, 0.9), (0.6, 0.9))
    assert (map_of(page) == 255).any()
    assert np.abs(picture_of(page) - picture).max() <= 1


def test_styles_and_hours_change_the_picture_and_not_the_map(page: Page) -> None:
    before, picture = map_of(page), picture_of(page)
    with new_picture(page):
        page.locator("#styles button", has_text="winter").click()
    winter = picture_of(page)
    assert np.abs(winter - picture).mean() > 0.5
    with new_picture(page):
        page.locator("#time").fill("4")
    night = picture_of(page)
    assert night.mean() < 0.8 * winter.mean()
    with new_picture(page):
        page.locator("#time").fill("3.5")
    assert night.mean() < picture_of(page).mean()
    with new_picture(page):
        page.locator("#styles button", has_text="random").click()
    assert np.abs(picture_of(page) - night).mean() > 2
    assert np.array_equal(map_of(page), before)


def test_style_of_a_photo_of_ones_own(page: Page, tmp_path: Path) -> None:
    pictures = {}
    for name, color in {"dark": (10, 12, 30), "light": (250, 220, 190)}.items():
        Image.new("RGB", (90, 70), color).save(tmp_path / f"{name}.png")
        with new_picture(page):
            page.set_input_files("#style-photo", tmp_path / f"{name}.png")
        pictures[name] = picture_of(page).mean()
    assert pictures["dark"] < pictures["light"] - 10


def test_maps_are_saved_and_opened_again(page: Page) -> None:
    start_flat(page, MOUNTAINS, WATER)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save map").click()
    before = map_of(page)
    with Image.open(saved.value.path()) as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), paint_labels(before))
    start_flat(page, SKY, GRASS)
    with new_picture(page):
        page.set_input_files("#open-map", saved.value.path())
    assert np.array_equal(map_of(page), before)


def test_jpeg_of_a_map_is_read_by_nearest_colors(page: Page, tmp_path: Path) -> None:
    labels = np.full((512, 512), SKY, np.uint8)
    labels[256:] = GRASS
    Image.fromarray(paint_labels(labels)).save(tmp_path / "map.jpg", quality=60)
    with new_picture(page):
        page.set_input_files("#open-map", tmp_path / "map.jpg")
    read = map_of(page)
    assert (read[:31] == SKY).all()
    assert (read[33:] == GRASS).all()


def test_the_picture_is_downloaded(page: Page) -> None:
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "landscape.png"
    with Image.open(saved.value.path()) as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), picture_of(page))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("text.png", b"no image", "text.png is not an image that this browser can read"),
        ("photo.png", None, "% of photo.png is in no color of the palette: it is no map."),
    ],
)
def test_files_that_are_no_maps_get_a_sentence(
    page: Page, tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    before = map_of(page)
    if content is None:
        file = io.BytesIO()
        Image.new("RGB", (64, 64), (255, 0, 255)).save(file, "PNG")
        content = file.getvalue()
    (tmp_path / name).write_bytes(content)
    page.set_input_files("#open-map", tmp_path / name)
    page.wait_for_selector("#error:not([hidden])")
    assert sentence in page.inner_text("#error")
    assert np.array_equal(map_of(page), before)


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_nothing_overlaps(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overlaps = page.evaluate(
        """() => {
          const kinds = "h1, p, canvas, button, .button, label, input[type=range], .ticks";
          const all = [...document.querySelectorAll(kinds)]
            .filter((each) => each.offsetParent && each.id !== "error");
          const found = [];
          for (const [i, one] of all.entries()) {
            for (const other of all.slice(i + 1)) {
              if (one.contains(other) || other.contains(one)) continue;
              const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
              const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
              const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
              if (wide > 1.5 && high > 1.5) found.push([one.outerHTML, other.outerHTML]);
            }
          }
          return found;
        }"""
    )
    assert overlaps == []
