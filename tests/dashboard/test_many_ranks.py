"""The page of a simulated job of 1,000 ranks, with a viewer that reads nothing."""

from __future__ import annotations

import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
from viewed_jobs import PATH, opened, until

from horovod.runner.observation.door import open_door
from horovod.runner.observation.records import FAILED, RUNNING, JobView, RankView, Verdict
from horovod.runner.observation.subscriber import Subscriber, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

SIZE = 1000
CULPRIT = 777
INTERVAL_S = 0.25
# A view has about 0.7 MB, so what keeps them grows by much more than that.
MOST_GROWTH_BYTES = 60 << 20


def view_of(number: int) -> JobView:
    ranks = [
        RankView(
            rank, f"host-{rank // 8}", RUNNING, 1.0, backward=0.2, compute=0.1, wait=0.6,
            network=0.1, step_s=0.2, memory_bytes=1 << 30, said=f"step {number}",
        )
        for rank in range(SIZE)
    ]  # fmt: skip
    ranks[CULPRIT] = RankView(CULPRIT, "host-97", RUNNING, 1.0, backward=1.0, step_s=0.2)
    ranks[5] = RankView(5, "host-0", FAILED)
    verdict = Verdict("rank", f"rank {CULPRIT} on host-97 makes the others wait", "", CULPRIT)
    return JobView(number, time.time(), "1", "train.py", 0.0, 0, tuple(ranks), (verdict,))


def show_views(viewer: Subscriber, over: threading.Event, shown: list[int]) -> None:
    """Send views as the launcher does."""
    with selectors.DefaultSelector() as selector:
        selector.register(viewer, selectors.EVENT_WRITE)
        while not over.wait(INTERVAL_S):
            shown.append(len(shown))
            viewer.show(encode({"type": "view", **view_of(shown[-1]).to_data()}))
            deadline = time.monotonic() + INTERVAL_S
            while viewer.wants_to_write and time.monotonic() < deadline:
                selector.select(0.05)
                viewer.write()


@contextmanager
def simulated(home: Path) -> Iterator[tuple[str, psutil.Process, list[int]]]:
    """The address of the page of a simulated job, the process that serves it, and views shown."""
    door, key = open_door()
    words = [sys.executable, "-m", "horovod.runner.cli", "dashboard", key]
    env = {"PYTHONPATH": PATH, "HOME": str(home)}
    over, shown = threading.Event(), list[int]()
    with (
        door,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process,
    ):
        assert process.stdout is not None
        door.settimeout(90)
        viewer = Subscriber(door.accept()[0])
        address = process.stdout.readline().split("job: ")[1].strip()
        thread = threading.Thread(target=show_views, args=(viewer, over, shown))
        thread.start()
        try:
            yield address, psutil.Process(process.pid), shown
        finally:
            over.set()
            thread.join(30)
            viewer.close()
            assert process.wait(60) == 0


def read_nothing(address: str) -> socket.socket:
    """A viewer that asks for the stream and reads none of it."""
    base, token = address.split("#")
    port = int(base.split(":")[2].strip("/"))
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = f"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    sock.sendall(request.encode())
    return sock


def test_a_thousand_ranks_and_a_viewer_that_reads_nothing(browser: Browser, tmp_path: Path) -> None:
    with (
        simulated(tmp_path) as (address, process, shown),
        read_nothing(address),
        opened(browser, address, viewport={"width": 390, "height": 844}) as page,
    ):
        page.get_by_role("heading", name=re.compile(f"rank {CULPRIT} on host-97")).wait_for()
        assert page.locator("#rows tr[data-rank]").count() < 60
        page.locator("#table").evaluate(f"(box) => {{ box.scrollTop = 28 * {CULPRIT}; }}")
        page.locator(f'#rows tr.blamed[data-rank="{CULPRIT}"]').wait_for()
        height = page.locator("#strip").evaluate("(canvas) => canvas.clientHeight")
        assert 300 < height <= 530
        page.locator("#strip").focus()
        for key in ["ArrowDown"] * 5:
            page.keyboard.press(key)
        assert page.locator("#strip-note").inner_text() == "Rank 5: failed."
        before, first = process.memory_info().rss, len(shown)
        until(lambda: len(shown) >= first + 20, 120, "twenty views")

        def number() -> int:
            return int(page.locator("body").get_attribute("data-number") or 0)

        # The viewer that reads nothing holds nobody up.
        until(lambda: number() >= first + 10, 60, "ten views on the page")
        assert process.memory_info().rss - before < MOST_GROWTH_BYTES
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
