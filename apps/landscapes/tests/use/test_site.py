"""The page as static files: complete, on its own, and with the model's pictures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import open_page

from landscapes import site as site_module
from landscapes.errors import LandscapesError
from landscapes.palette import CLASSES
from landscapes.site import write_site

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from landscapes.studio import Studio

RUN = """async ([model, inputs]) => {
  const kinds = { labels: Int32Array, style: Float32Array, photo: Float32Array };
  for (const [name, values] of Object.entries(inputs)) inputs[name] = kinds[name].from(values);
  const { data, dims } = await landscapes.engine.run(model, inputs);
  return [Array.from(data), dims];
}"""


@pytest.fixture
def alone(browser: Browser, static: str) -> Page:
    """The page of the static files."""
    page = browser.new_page()
    open_page(page, static)
    return page


def run_model(page: Page, model: str, **inputs: np.ndarray) -> np.ndarray:
    """Return the output of a model that the browser runs."""
    lists = {name: values.reshape(-1).tolist() for name, values in inputs.items()}
    data, dims = page.evaluate(RUN, [model, lists])
    return np.array(data, np.float32).reshape(dims)


def test_pictures_of_the_browser_are_those_of_pytorch(alone: Page, studio: Studio) -> None:
    draw = np.random.default_rng(0)
    size = studio.network.size
    maps = [*(each.labels for each in studio.scenes)]
    maps.append(draw.integers(0, len(CLASSES), (size, size), np.uint8))
    for labels in maps:
        style = draw.standard_normal(studio.network.z_dim, np.float32)
        expected = studio.network.paint(labels[None], style[None])
        found = run_model(alone, "generator", labels=labels, style=style)
        assert found.shape == (1, 3, size, size)
        assert np.abs(found - expected).max() < 1e-3
    assert expected.std() > 0.05  # a picture, not a flat color


def test_styles_of_the_browser_are_those_of_pytorch(alone: Page, studio: Studio) -> None:
    size = studio.network.size
    photo = np.random.default_rng(0).uniform(-1, 1, (1, 3, size, size)).astype(np.float32)
    expected = studio.network.encode(photo)
    assert np.abs(run_model(alone, "encoder", photo=photo) - expected).max() < 1e-3


def test_a_missing_model_gets_a_sentence(browser: Browser, static: str) -> None:
    page = browser.new_page()
    page.route("**/generator.onnx", lambda route: route.fulfill(status=404, body="none"))
    page.goto(static)
    page.wait_for_selector("#error:not([hidden])", timeout=60_000)
    assert "The model generator cannot run in this browser" in page.inner_text("#error")


def test_a_missing_server_gets_a_sentence(browser: Browser, served: str) -> None:
    page = browser.new_page()
    open_page(page, served)
    page.route("**/api/synthesize", lambda route: route.abort())
    page.locator("#styles button", has_text="winter").click()
    page.wait_for_selector("#error:not([hidden])")
    assert "The server does not answer" in page.inner_text("#error")
    page.unroute("**/api/synthesize")
    page.locator("#styles button", has_text="summer").click()
    page.wait_for_selector("#error", state="hidden")


def test_the_site_has_all_that_its_description_names(site: Path) -> None:
    meta = json.loads((site / "api" / "meta").read_text())
    assert meta["engine"] == "browser"
    assert (site / meta["sheet"]).stat().st_size > 1000
    assert set(meta["models"]) >= {"generator", "encoder"}
    for file in (*meta["models"].values(), "runtime/ort-wasm-simd-threaded.wasm", "index.html"):
        assert (site / file).is_file()
    assert not list(site.rglob(".*"))


def test_folders_of_other_files_are_refused(studio: Studio, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(LandscapesError, match="has files of something else: name a new folder"):
        write_site(studio, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_runtime_that_was_not_fetched_is_named(
    studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "RUNTIME", tmp_path / "runtime" / "version.txt")
    with pytest.raises(LandscapesError, match="make landscapes-runtime"):
        write_site(studio, tmp_path / "site")
    assert not (tmp_path / "site").exists()
