"""Opens many connections that say nothing, and some that drip: python ... ADDRESS PORT IDLE SLOW.

Prints ``there`` when all have been opened, and goes on until its stdin ends: whoever was thrown out
of the slow ones comes again.
"""

from __future__ import annotations

import selectors
import socket
import sys
from contextlib import suppress

DRIP_S = 0.05
# What a friend would send, one byte at a time.
HELLO = b"horovod\x01" + bytes(120)


class Drip:
    """One connection that sends its hello a byte at a time."""

    def __init__(self, where: tuple[str, int]) -> None:
        self._where = where
        self._sock: socket.socket | None = None
        self._sent = 0

    def go_on(self) -> None:
        with suppress(OSError):
            if self._sock is None:
                self._sock, self._sent = socket.create_connection(self._where, 5), 0
            self._sock.send(HELLO[self._sent : self._sent + 1])
            self._sent += 1
            return
        if self._sock is not None:
            self._sock.close()
        self._sock = None


def open_idle(where: tuple[str, int], count: int) -> tuple[list[socket.socket], int]:
    """Opens that many; returns those that are still open, and how many were thrown out."""
    idle, num_gone = [], 0
    watch = selectors.DefaultSelector()
    for _ in range(count):
        with suppress(OSError):
            sock = socket.create_connection(where, 5)
            watch.register(sock, selectors.EVENT_READ)
            idle.append(sock)
        for key, _ in watch.select(0):  # thrown out
            watch.unregister(key.fileobj)
            idle.remove(key.fileobj)
            key.fileobj.close()
            num_gone += 1
    return idle, num_gone


def main() -> None:
    where = (sys.argv[1], int(sys.argv[2]))
    idle, num_gone = open_idle(where, int(sys.argv[3]))
    slow = [Drip(where) for _ in range(int(sys.argv[4]))]
    for drip in slow:
        drip.go_on()
    print(f"there: {len(idle)} open, {num_gone} thrown out", flush=True)
    end = selectors.DefaultSelector()
    end.register(sys.stdin, selectors.EVENT_READ)
    while not end.select(DRIP_S):
        for drip in slow:
            drip.go_on()


if __name__ == "__main__":
    main()
