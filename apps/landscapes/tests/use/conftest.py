"""The page in Chromium: served by the app, and as static files that run the model themselves."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from typing import TYPE_CHECKING

import pytest
import uvicorn
from on_page import NEW_PICTURE

from landscapes.open_studio import open_studio
from landscapes.serving.app import build_app
from landscapes.site import write_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from landscapes.studio import Studio

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
READY_WITHIN_MS = 60_000


@pytest.fixture(scope="session")
def studio() -> Studio:
    """The shipped checkpoint."""
    return open_studio(None)


@pytest.fixture(scope="session")
def served(studio: Studio) -> Iterator[str]:
    """The address of the page behind the server of the app."""
    config = uvicorn.Config(build_app(studio), host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = threading.Event()
    for _ in range(2400):
        if server.started or not thread.is_alive():
            break
        deadline.wait(0.05)
    assert server.started
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="session")
def site(studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page that runs the model in the browser."""
    folder = tmp_path_factory.mktemp("site") / "landscapes"
    write_site(studio, folder)
    return folder


@pytest.fixture(scope="session")
def static(site: Path) -> Iterator[str]:
    """The address of that folder behind a server of files, below the root as on a docs site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=site.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{site.name}/"
        server.shutdown()
        thread.join(30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: make system")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, as which containers run tests.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module", params=["served", "static"])
def opened(browser: Browser, request: pytest.FixtureRequest) -> Iterator[tuple[Page, list[str]]]:
    """The page in both forms, and what was wrong on it: errors, and requests to other hosts."""
    address: str = request.getfixturevalue(request.param)
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((address, "blob:", "data:"))
                else faults.append(f"asked for {request.url}")
            ),
        )
        open_page(page, address)
        yield page, faults


@pytest.fixture
def page(opened: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page as it is when it is loaded; a test fails if anything is wrong on it."""
    page, faults = opened
    page.set_viewport_size({"width": 1280, "height": 900})
    before = page.evaluate(START_AGAIN)
    page.wait_for_function(NEW_PICTURE, arg=before)
    yield page
    assert faults == []


# Quicker than to load the page and its model again.
START_AGAIN = """() => {
  const { pictures, history, meta } = landscapes;
  document.querySelector("#scenes button").click();
  landscapes.history = new history.constructor();
  landscapes.useTool("brush");
  landscapes.choose(meta.classes[2].id);
  landscapes.useSize(landscapes.sizes[2]);
  landscapes.useStyle({ biome: meta.biomes[0], time: 1 });
  return pictures;
}"""


def open_page(page: Page, address: str) -> None:
    """Return when the first picture is painted."""
    page.goto(address)
    page.wait_for_selector("#picture[data-pictures]", timeout=READY_WITHIN_MS)
