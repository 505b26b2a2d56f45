"""A slow rank is named with its phase on the page, in the terminal and in the metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from viewed_jobs import SOURCE, Job, opened, slow_job, until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

NAMED_WITHIN_S = 20.0


def scrape(url: str, token: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def status_of(url: str, headers: dict[str, str], method: str = "GET") -> int:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def viewer_of(job: Job, home: Path) -> subprocess.Popen[str]:
    """A process that serves the page of a job that runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "horovod.runner.cli", "dashboard", str(job.process.pid)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": SOURCE, "HOME": str(home)},
    )


def train_began(job: Job) -> float:
    job.wait_for("step 0: loss")
    return time.monotonic()


@pytest.mark.parametrize(("phase", "rank", "delay_s"), [("backward", 1, 0.2), ("input", 2, 0.15)])
def test_page_terminal_and_metrics_name_rank_and_phase(
    browser: Browser, tmp_path: Path, phase: str, rank: int, delay_s: float
) -> None:
    options = ["--dashboard", "--watch", "--metrics-port", "0"]
    words = {"backward": "in its backward pass", "input": "loading its input"}[phase]
    sentence = rf"rank {rank} on localhost makes the others wait: .* longer {words} \(slow_rank.py"
    with (
        slow_job(tmp_path, phase, rank, delay_s, *options) as (job, stop),
        opened(browser, job.address) as page,
    ):
        began = train_began(job)
        page.get_by_role("heading", name=re.compile(sentence)).wait_for(timeout=60_000)
        job.wait_for(sentence)
        url = job.wait_for("metrics: ").split("metrics: ")[1].split(";")[0]
        token = (tmp_path / ".horovod" / "metrics.token").read_text()
        verdict = rf'job_verdict{{.*kind="rank",rank="{rank}",phase="{phase}"}}'
        until(lambda: re.search(verdict, scrape(url, token)), 10, "a metric of the verdict")
        assert time.monotonic() - began < NAMED_WITHIN_S
        assert status_of(url, {"Authorization": "Bearer x"}) == 401
        excess = re.search(r"spends (\d+) ms per step", page.locator("h1").inner_text(), re.I)
        assert excess is not None
        assert 0.5 * delay_s < int(excess[1]) / 1000 < 2.5 * delay_s
        stop.touch()
        page.locator("#job", has_text="ended:").wait_for(timeout=60_000)
        assert job.process.wait(60) == 0
        assert re.search(sentence, job.wait_for("% of the time watched: "))


def test_buttons_viewers_and_strangers(browser: Browser, tmp_path: Path) -> None:
    with slow_job(tmp_path, "none", 0, 0.0) as (job, stop), ExitStack() as stack:
        job.wait_for("step 0: loss")
        viewer = stack.enter_context(viewer_of(job, tmp_path))
        assert viewer.stdout is not None
        address = viewer.stdout.readline().split("job: ")[1].strip()
        assert viewer.stdout.readline().startswith("from another machine first: ssh -L ")
        base, token = address.split("#")
        for path, method in (("stream", "GET"), ("output/0", "GET"), ("stacks", "POST")):
            for headers in ({}, {"Authorization": f"Bearer {token[:-1]}"}):
                assert status_of(base + path, headers, method) == 401
        mine = {"Authorization": f"Bearer {token}"}
        assert status_of(base + "output/0", {**mine, "Host": "evil.example"}) == 400
        with opened(browser, base) as page:
            page.get_by_role("heading", name=re.compile("lacks the token")).wait_for()
        with opened(browser, address) as first, opened(browser, address) as second:
            for page in (first, second):
                page.locator('td:has-text("running")').nth(2).wait_for(timeout=60_000)
            first.get_by_role("button", name="Stacks of all ranks").click()
            first.locator("#answer", has_text="slow_rank.py").wait_for(timeout=60_000)
            with first.expect_download(timeout=60_000) as download:
                first.get_by_role("button", name="Trace the next 10 steps").click()
            events = json.loads(download.value.path().read_bytes())
            assert {event["pid"] for event in events} == {0, 1, 2}
            assert sum(event.get("name") == "ALLREDUCE" for event in events) >= 10
            second.locator("#rows tr").nth(1).focus()
            second.keyboard.press("Enter")
            second.locator("#output", has_text="loss").wait_for(timeout=60_000)
            assert second.locator("#output-rank").input_value() == "1"
        stop.touch()
        assert viewer.wait(60) == 0
        assert job.process.wait(60) == 0
