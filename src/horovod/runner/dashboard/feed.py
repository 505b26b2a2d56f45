"""What the page gets: the newest view for each viewer, and the recent past in compact form.

Each viewer waits for the next view and gets the newest one. A viewer that is slow misses views, but
holds nobody up, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MOST_COLUMNS = 300
# Of ranks and columns: bounds the memory, and what a viewer gets first.
MOST_CELLS = 60_000
# Per rank, in percent.
SHARES = ("input", "backward", "optimizer", "compute", "wait", "network")


class Feed:
    """Views and answers of one job. For one event loop.

    Args:
        ask: sends a request to the launcher.

    Attributes:
        num_viewers: who follow now.
    """

    def __init__(self, ask: Callable[[dict[str, Any]], None]) -> None:
        self._ask = ask
        self._newest: dict[str, Any] | None = None
        self._past: deque[dict[str, Any]] = deque()
        self._changed = asyncio.Event()
        self._is_over = False
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.num_viewers = 0

    def take(self, message: dict[str, Any]) -> None:
        """Take a message of the stream."""
        kind = message.pop("type")
        if kind == "view":
            self._newest = message
            self._remember(column_of(message))
            self._wake()
        elif kind in self._waiting and not self._waiting[kind].done():
            self._waiting[kind].set_result(message)

    def end(self) -> None:
        """Let viewers go after the last view."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _remember(self, column: dict[str, Any]) -> None:
        if self._past and len(self._past[-1]["ranks"]) != len(column["ranks"]):
            self._past.clear()  # other ranks have these numbers now
        self._past.append(column)
        most = max(20, min(MOST_COLUMNS, MOST_CELLS // max(1, len(column["ranks"]))))
        while len(self._past) > most:
            self._past.popleft()

    async def follow(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield ``("past", …)`` once, then ``("view", …)`` again and again, until the job ends."""
        self.num_viewers += 1
        try:
            yield "past", {"shares": SHARES, "columns": list(self._past)}
            shown = None
            while True:
                changed, newest = self._changed, self._newest
                if newest is not None and newest is not shown:
                    shown = newest
                    column = column_of(newest)
                    yield "view", {**newest, "logged": column["logged"], "column": column}
                elif self._is_over:
                    return
                else:
                    await changed.wait()
        finally:
            self.num_viewers -= 1

    async def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Ask the launcher, one question of a kind at a time.

        An answer with ``problem`` says what is wrong.

        Args:
            request: see :mod:`horovod.runner.observation.stream`.
            timeout_s: for the answer.
        """
        kind = str(request["do"])
        async with self._turns[kind]:
            future = asyncio.get_running_loop().create_future()
            self._waiting[kind] = future
            try:
                await asyncio.to_thread(self._ask, request)
                return await asyncio.wait_for(future, timeout_s)
            except (OSError, asyncio.TimeoutError):
                return {"problem": "the launcher gave no answer: has the job ended?"}
            finally:
                del self._waiting[kind]


def column_of(view: dict[str, Any]) -> dict[str, Any]:
    """Return what the page keeps of a view for its pictures. Pure.

    Returns:
        The time, the median and the longest step in milliseconds, traffic in Mbit/s, memory in MiB,
        the logged values, and for each rank its shares in percent, or its state if it has none.
    """
    ranks = view["ranks"]
    steps = sorted(rank["step_s"] for rank in ranks if rank["step_s"] > 0)
    memory = max((rank["memory_bytes"] for rank in ranks), default=0)
    gpu = max((rank["gpu_memory_bytes"] for rank in ranks), default=0)
    hosts = {rank["host"]: rank["network_bytes_per_s"] for rank in ranks}
    return {
        "at": round(view["at"], 3),
        "step": round(1000 * steps[len(steps) // 2], 2) if steps else None,
        "least": round(1000 * steps[0], 2) if steps else None,
        "most": round(1000 * max(rank["slowest_step_s"] for rank in ranks), 2) if steps else None,
        "mbit": round(8e-6 * max(hosts.values(), default=0.0), 2),
        "link": round(8e-6 * max((r["link_bytes_per_s"] for r in ranks), default=0.0), 1),
        "memory": round(memory / 2**20, 1) if memory else None,
        "gpu": round(gpu / 2**20, 1) if gpu else None,
        "logged": {name: _finite(value) for name, value in view["logged"].items()},
        "ranks": [_cell(rank) for rank in ranks],
    }


def _finite(value: float) -> float | None:
    """Return a number that a browser reads: JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _cell(rank: dict[str, Any]) -> list[int] | str:
    if rank["state"] != "running" or not rank["length_s"]:
        return str(rank["state"])
    return [round(100 * rank[share]) for share in SHARES]
