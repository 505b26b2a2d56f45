"""The launcher's own stdout and stderr, which may be slow, stuck, full or gone.

Nothing here waits for them but :meth:`Console.wait`, which has a deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING, TextIO

from horovod.runner.output.outlets import DescriptorOutlet, outlet_of
from horovod.runner.output.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

# So long a console that takes nothing is waited for at the end: of a job that ended well (somebody
# may look at a page of it), and of any other.
PATIENCE_S = 60.0
SHORT_PATIENCE_S = 5.0
_LOOK_S = 0.25


class Console:
    """stdout and stderr, written by threads. Safe to use from several threads.

    What both of them show, if they are one terminal, pipe or file, keeps its order.

    Args:
        stdout, stderr: of the launcher; None if it has none.
        name: of the launcher, in front of its own messages.

    Attributes:
        is_one: whether both of them are the same terminal, pipe or file.
    """

    def __init__(
        self, stdout: TextIO | None, stderr: TextIO | None, name: str = "horovodrun"
    ) -> None:
        self._name = name
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._writers: list[Writer] = []
        self._streams = {"stdout": stdout, "stderr": stderr}
        self._outlets = {name: outlet_of(stream) for name, stream in self._streams.items()}
        writer = self.add_writer()
        self.is_one = _are_same(*self._outlets.values()) or stdout is stderr
        self._by_name = {"stdout": writer, "stderr": writer if self.is_one else self.add_writer()}

    def add_writer(self) -> Writer:
        """A further thread, for outlets other than the console."""
        writer = Writer(lambda: os.eventfd_write(self._news, 1))
        self._writers.append(writer)
        return writer

    def fileno(self) -> int:
        """Readable after news; see :meth:`take_news`."""
        return self._news

    def take_news(self) -> None:
        """Makes the descriptor unreadable until there is something new."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)

    def put(self, name: str, data: bytes) -> None:
        """Queues bytes for the console.

        Args:
            name: "stdout" or "stderr".
            data: valid UTF-8.
        """
        self._by_name[name].put(self._outlets[name], data)

    def say(self, line: str) -> None:
        """Queues a message of the launcher itself for stderr."""
        self.put("stderr", f"{self._name}: {line}\n".encode(errors="replace"))

    def error(self) -> OSError | None:
        """The error after which stdout or stderr takes nothing more; None if both work."""
        found = (self._by_name[name].error_of(outlet) for name, outlet in self._outlets.items())
        return next(filter(None, found), None)

    @property
    def pending(self) -> int:
        """Number of bytes that wait in all writers."""
        return sum(writer.pending for writer in self._writers)

    def tell_below(self, num_bytes: int) -> bool:
        """Whether each writer has at most that many bytes left; if not, there will be news."""
        return all([writer.tell_below(num_bytes) for writer in self._writers])

    def wait_for_room(self, num_bytes: int) -> None:
        """Waits until each writer has at most that many bytes left, or takes nothing more.

        For threads that only relay; the launcher's loop asks :meth:`tell_below`.
        """
        for writer in self._writers:
            writer.wait_below(num_bytes)

    def colored(self, environ: Mapping[str, str]) -> frozenset[str]:
        """The streams that are terminals, unless the user wants no colors.

        Args:
            environ: ``NO_COLOR`` with any text, and a ``TERM`` that is dumb, turn colors off.
        """
        if environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
            return frozenset()
        return frozenset(
            name for name, stream in self._streams.items() if stream is not None and stream.isatty()
        )

    def wait(self, patience_s: float, interrupts: int | None = None) -> bool:
        """Waits until all is written, as long as anything is taken.

        Args:
            patience_s: for how long nothing may be taken.
            interrupts: a descriptor; when it is readable, nobody wants to wait.

        Returns:
            Whether all was written.
        """
        poll = select.poll()
        for descriptor in (self._news, interrupts):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        written, looks = -1, 0
        while not self.tell_below(0):
            now = sum(writer.written for writer in self._writers)
            # Looks are counted rather than seconds: this process may have been stopped meanwhile.
            written, looks = now, looks + 1 if now == written else 0
            if looks * _LOOK_S >= patience_s:
                return False
            if any(descriptor == interrupts for descriptor, _ in poll.poll(1000 * _LOOK_S)):
                return False
            self.take_news()
        return True

    def give_up(self) -> int:
        """Waits no longer for what takes nothing; it gets nothing more.

        Returns:
            How many bytes were not written.
        """
        return sum(writer.close() for writer in self._writers if writer.pending)

    def close(self) -> None:
        """Ends the threads, and drops what was not written. Idempotent."""
        if self._news >= 0:
            for writer in self._writers:
                writer.close()
            for name, outlet in self._outlets.items():
                if self._by_name[name].finished:
                    outlet.close()
            os.close(self._news)
            self._news = -1

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *exception: object) -> None:
        """Waits for a moment until all is written, and closes."""
        self.wait(SHORT_PATIENCE_S)
        self.close()


def _are_same(stdout: object, stderr: object) -> bool:
    if isinstance(stdout, DescriptorOutlet) and isinstance(stderr, DescriptorOutlet):
        return stdout.identity == stderr.identity
    return False


def say(stderr: TextIO, line: str) -> None:
    """Write a message of the launcher itself before a job; a console that is gone is no error."""
    try:
        stderr.write(f"horovodrun: {line}\n")
        stderr.flush()
    except OSError:
        return
