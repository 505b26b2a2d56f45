"""What happens to a job appears on the page within two seconds."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

from viewed_jobs import HERE, opened, slow_job, started

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

APPEARS_WITHIN_S = 2.0


def pids_of(path: Path) -> dict[int, int]:
    """The process of each rank, as changing_rank.py writes them."""
    return {int(each.name): int(each.read_text()) for each in path.iterdir()}


def assert_appears(page: Page, selector: str, text: str, since: float) -> None:
    """Wait for a text on the page. A locator would look every half second only."""
    there = "([selector, text]) => document.querySelector(selector).textContent.includes(text)"
    page.wait_for_function(there, arg=[selector, text], polling=20, timeout=60_000)
    took_s = time.monotonic() - since
    assert took_s < APPEARS_WITHIN_S, f"{text!r} appeared after {took_s:.2f} s"


def test_a_stall_and_a_killed_rank(browser: Browser, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    os.environ["PIDS"] = str(pids)
    with slow_job(tmp_path, "none", 0, 0.0, "--dashboard") as (job, _):
        with opened(browser, job.address) as page:
            page.locator('td:has-text("running")').nth(2).wait_for(timeout=60_000)
            stopped = pids_of(pids)[2]
            since = time.monotonic()
            os.kill(stopped, signal.SIGSTOP)
            assert_appears(page, "h1", "nothing happens for", since)
            assert "rank 2 on localhost" in page.locator("h1").inner_text()
            os.kill(stopped, signal.SIGCONT)
            page.locator("h1:not(:has-text('nothing happens'))").wait_for(timeout=60_000)
            since = time.monotonic()
            os.kill(pids_of(pids)[1], signal.SIGKILL)
            assert_appears(page, "#events", "rank 1 on localhost was killed by signal 9", since)
            assert_appears(page, "#rows", "failed", since)
        assert job.process.wait(60) == 137


def test_an_elastic_change(browser: Browser, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("echo localhost:3\n")
    command = [sys.executable, str(HERE / "elastic_rank.py"), str(tmp_path / "stop")]
    options = ["--dashboard", "-np", "3", "--min-np", "2", "--max-np", "3"]
    script = ["--host-discovery-script", f"sh {hosts}"]
    with (
        started(tmp_path, *options, *script, *command) as job,
        opened(browser, job.address) as page,
    ):
        page.locator('td:has-text("running")').nth(2).wait_for(timeout=60_000)
        hosts.write_text("echo localhost:2\n")
        change = page.locator("#events li", has_text="generation 1: 2 ranks")
        change.wait_for(timeout=60_000)
        happened = datetime.fromisoformat(
            str(change.locator("time").get_attribute("datetime")).replace("Z", "+00:00")
        )
        assert time.time() - happened.timestamp() < APPEARS_WITHIN_S
        page.locator("#job", has_text="2 ranks, generation 1").wait_for(timeout=60_000)
        page.locator('td:has-text("running")').nth(1).wait_for(timeout=60_000)
        (tmp_path / "stop").touch()
        page.locator("#job", has_text="ended:").wait_for(timeout=60_000)
