"""Runs of an experiment that go on at the same time, each on slots of its own."""

from __future__ import annotations

import os
import select
import threading
from collections import Counter, deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod.runner.output.console import Console
from horovod.runner.placing.hosts import assign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod.runner.placing.hosts import Host, Slot
    from horovod.runner.starting.requests import Caller


@dataclass(frozen=True)
class Lane:
    """Slots on which runs are executed one after the other.

    Attributes:
        slots: of the ranks of each run.
        caller: who launches them.
    """

    slots: Sequence[Slot]
    caller: Caller


def divided(
    hosts: Sequence[Host], size: int, at_most: int, *, shares_hosts: bool
) -> list[list[Slot]]:
    """Slots for as many runs of ``size`` ranks as there may be at a time. Pure.

    Args:
        hosts: all that there are; a single one without a number of slots has room for all.
        size: the ranks of a run.
        at_most: how many runs.
        shares_hosts: whether two runs may have slots of the same host.

    Raises:
        UsageError: there is no room for one run.
    """
    left = list(hosts)
    if len(left) > 1:  # of several hosts, one without a number has one slot
        left = [replace(host, slots=1 if host.slots is None else host.slots) for host in left]
    found = [assign(left, size)]
    while len(found) < at_most:
        used = Counter(slot.hostname for slot in found[-1])
        if not shares_hosts:
            left = [host for host in left if not used[host.name]]
        left = [
            host if host.slots is None else replace(host, slots=host.slots - used[host.name])
            for host in left
        ]
        left = [host for host in left if host.slots != 0]
        if not left or sum(size if host.slots is None else host.slots for host in left) < size:
            break
        found.append(assign(left, size))
    return found


def in_lanes(
    indices: Sequence[int], lanes: Sequence[Lane], work: Callable[[int, Lane], bool]
) -> None:
    """Does the work of each index in one of the lanes, the next index in the next that is free.

    The lanes write nothing to the console, where the lines of several runs would mix. A signal to
    the launcher goes to all of them, and no further work is begun.

    Args:
        indices: of runs.
        lanes: at least one, all with the same interrupts.
        work: executes a run; returns whether others may follow.

    Raises:
        Exception: what the work of a lane has raised, when all lanes have ended.
    """
    waiting = deque(indices)
    errors: list[BaseException] = []
    with ExitStack() as stack:
        done = stack.enter_context(_event())
        signals = [stack.enter_context(_pipe()) for _ in lanes]

        def follow(lane: Lane, read_end: int) -> None:
            try:
                with Console(None, None) as silent:
                    caller = replace(lane.caller, console=silent, interrupts=read_end)
                    own = replace(lane, caller=caller)
                    while True:
                        try:
                            index = waiting.popleft()
                        except IndexError:
                            return
                        if not work(index, own):
                            waiting.clear()
            except BaseException as error:
                waiting.clear()
                errors.append(error)
            finally:
                os.eventfd_write(done, 1)

        threads = [
            threading.Thread(target=follow, args=(lane, read_end), name=f"horovod-lane-{number}")
            for number, (lane, (read_end, _)) in enumerate(zip(lanes, signals, strict=True))
        ]
        for thread in threads:
            thread.start()
        num_left = len(threads)
        interrupts = lanes[0].caller.interrupts
        while num_left:
            ready, _, _ = select.select(
                [done, *([] if interrupts is None else [interrupts])], [], []
            )
            if done in ready:
                num_left -= os.eventfd_read(done)
            if interrupts in ready:
                data = os.read(interrupts, 64)
                waiting.clear()
                for _, write_end in signals:
                    os.write(write_end, data)
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@contextmanager
def _event() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)
        os.close(write_end)
