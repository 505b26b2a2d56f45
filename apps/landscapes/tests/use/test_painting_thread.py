"""The line of requests before the thread that paints is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest
from on_page import run_apart

from landscapes.serving.queue import BusyError, PaintingThread


def test_requests_beyond_the_line_are_refused_at_once_and_accepted_later() -> None:
    async def ask() -> None:
        thread = PaintingThread(most_waiting=1)
        gate = threading.Event()
        running = asyncio.create_task(thread.run(gate.wait, 30))
        waiting = asyncio.create_task(thread.run(lambda: "second"))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="2 pictures are asked for already"):
            await thread.run(lambda: "third")
        gate.set()
        assert await asyncio.gather(running, waiting) == [True, "second"]
        assert await thread.run(lambda: "fourth") == "fourth"
        thread.close()

    run_apart(ask())


def test_a_caller_that_leaves_keeps_its_place_until_the_thread_is_free() -> None:
    async def ask() -> None:
        thread = PaintingThread(most_waiting=0)
        started, gate = threading.Event(), threading.Event()
        running = asyncio.create_task(thread.run(lambda: (started.set(), gate.wait(30))))
        assert await asyncio.to_thread(started.wait, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(BusyError):
            await thread.run(lambda: None)
        gate.set()
        thread.close()

    run_apart(ask())


def test_errors_of_a_call_reach_its_caller() -> None:
    async def ask() -> None:
        thread = PaintingThread(most_waiting=0)
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
        assert await thread.run(lambda: 2) == 2
        thread.close()

    run_apart(ask())
