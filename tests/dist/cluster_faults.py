"""A rank of a job between hosts that loses one of them: run by test_cluster.py on every rank.

Arguments: the name of a function below, and what it takes. A rank that gets an error says when,
and which. Times are those of the monotonic clock, which emulated hosts share.
"""

from __future__ import annotations

import array
import itertools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from horovod._native import Buffer, Handle
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod._rendezvous import sockets
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 60.0


class Reducer:
    """Sums the same array again and again."""

    def __init__(self, num_elements: int) -> None:
        self.values = array.array("f", bytes(4 * num_elements))
        self._buffer = Buffer.from_array(self.values)

    def start(self, name: str) -> Handle:
        """Submits one allreduce."""
        both = [self._buffer]
        group = context.global_group()
        return group.allreduce(both, both, PLAIN_SUM, name=name, keep=self.values)


def say(word: str, text: str = "") -> None:
    """Prints a word, the time, and a text."""
    print(f"{word} {time.monotonic()} {text}", flush=True)


def killed(culprit: str, num_elements: str) -> None:
    """A rank dies in the midst of an allreduce."""
    context.init()
    reducer = Reducer(int(num_elements))
    context.global_group().barrier().wait(WAIT_S)
    handle = reducer.start("large")
    if context.global_group().rank == int(culprit):
        assert not handle.wait(0.3), "the allreduce is over: nothing was in the midst of it"
        say("fault")
        os.kill(os.getpid(), signal.SIGKILL)
    handle.wait(WAIT_S)


def cut(num_elements: str, silence_s: str) -> None:
    """Reduces until the network of a host is gone."""
    for _ in steps(int(num_elements), int(silence_s)):
        pass


def paused(num_elements: str, silence_s: str) -> None:
    """Reduces until SIGUSR1 comes to rank 0, whatever else happens."""
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    for values in steps(int(num_elements), int(silence_s)):
        if values[0] > 0:
            return  # rank 0 has said so to all
        values[0] = float(bool(told))


def steps(num_elements: int, silence_s: int) -> Iterator[array.array[float]]:
    """Sums without end, in place.

    Args:
        num_elements: of the array.
        silence_s: after which a host counts as lost.
    """
    sockets.PEER_SILENCE_S = silence_s
    context.init()
    reducer = Reducer(num_elements)
    for step in itertools.count(1):
        assert reducer.start(f"step{step % 8}").wait(WAIT_S), "nobody noticed"
        if step == 3:
            say("reducing")
        yield reducer.values


if __name__ == "__main__":
    try:
        {each.__name__: each for each in (killed, cut, paused)}[sys.argv[1]](*sys.argv[2:])
    except HorovodInternalError as error:
        say("error", f"{type(error).__name__}: {error}")
        raise
