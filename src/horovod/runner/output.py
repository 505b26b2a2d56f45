"""What becomes of the output of the ranks: prefixes on the console, and files.

The console gets ``[rank]<stdout>:`` or ``[rank]<stderr>:`` in front of every line. The files of
``--output-filename`` get the bytes as the rank wrote them, without prefixes.
"""

from __future__ import annotations

import codecs
import re
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

# A line that is longer than this is cut, so that a rank that never ends its line cannot fill the
# launcher's memory.
MAX_LINE_CHARS = 1024 * 1024
TAIL_LINES = 20
_MAX_TAIL_CHARS = 500

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")

STREAMS = ("stdout", "stderr")

# Of the palette's colours those that can be read on dark and on light ground, one rank after the
# other.
_COLOURS = tuple(f"\x1b[{code}m" for code in (36, 32, 33, 35, 34, 31))
_NO_COLOUR = "\x1b[0m"


class LinePrefixer:
    r"""Puts a prefix in front of each line of a stream of bytes.

    A line ends at ``\n``, ``\r`` or ``\r\n``; ending at ``\r`` lets progress bars appear at once.
    Bytes are UTF-8; a character may be split between two calls, an invalid byte becomes U+FFFD.

    Args:
        prefix: computes the text in front of a line, at the time when the line ends.
    """

    def __init__(self, prefix: Callable[[], str]) -> None:
        self._prefix = prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._after_return = False

    def feed(self, data: bytes) -> str:
        """Adds bytes; returns the lines that are complete now, with their prefixes."""
        return self._add(self._decoder.decode(data))

    def finish(self) -> str:
        """Returns the last line if it lacks its end; the end is added."""
        text = self._add(self._decoder.decode(b"", final=True))
        if self._held:
            text += f"{self._prefix()}{self._held}\n"
            self._held = ""
        return text

    def _add(self, text: str) -> str:
        parts = []
        if self._after_return and text:
            self._after_return = False
            if text[0] == "\n":  # the second half of "\r\n"; its first half is out already
                parts.append("\n")
                text = text[1:]
        text = self._held + text
        end = 0
        for match in _LINE.finditer(text):
            parts.append(self._prefix() + match.group())
            end = match.end()
        self._held = text[end:]
        self._after_return = text.endswith("\r")
        if len(self._held) > MAX_LINE_CHARS:
            parts.append(f"{self._prefix()}{self._held}\n")
            self._held = ""
        return "".join(parts)


class Tail:
    """The last lines of a stream of bytes, as a terminal would show them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._held = ""

    def feed(self, data: bytes) -> None:
        """Adds bytes."""
        *complete, self._held = (self._held + self._decoder.decode(data)).split("\n")
        self._lines.extend(_visible(line) for line in complete[-TAIL_LINES:])
        self._held = self._held[-MAX_LINE_CHARS:]

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first, without the empty ones at the end."""
        lines = [*self._lines, _visible(self._held)][-TAIL_LINES:]
        while lines and not lines[-1].strip():
            lines.pop()
        return tuple(lines)


def _visible(line: str) -> str:
    """What is left on a terminal: a carriage return lets the rest overwrite the line."""
    return line.rstrip("\r").rpartition("\r")[2][:_MAX_TAIL_CHARS]


def streams_to_colour(stdout: TextIO, stderr: TextIO, environ: Mapping[str, str]) -> frozenset[str]:
    """The streams that are terminals, unless the user wants no colours.

    Args:
        stdout, stderr: the console.
        environ: ``NO_COLOR`` with any text, and a ``TERM`` that is dumb, turn colours off.
    """
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return frozenset()
    consoles = {"stdout": stdout, "stderr": stderr}
    return frozenset(name for name, console in consoles.items() if console.isatty())


class Output:
    """Where the output of all ranks goes. Safe to use from several threads.

    Args:
        size: the number of ranks.
        stdout, stderr: the console; lines are written whole and flushed.
        directory: for files ``rank.<rank>/stdout`` and ``rank.<rank>/stderr``; None for no files.
        timestamps: write the time in front of the prefix.
        now: the text of the current time.
        coloured: the streams whose prefixes have a colour for each rank.

    Raises:
        UsageError: the files cannot be created.
    """

    def __init__(
        self,
        size: int,
        stdout: TextIO,
        stderr: TextIO,
        *,
        directory: str | None = None,
        timestamps: bool = False,
        now: Callable[[], str] = time.asctime,
        coloured: Collection[str] = (),
    ) -> None:
        self._consoles = {"stdout": stdout, "stderr": stderr}
        self._now = now if timestamps else lambda: ""
        self._coloured = frozenset(coloured)
        self._lock = threading.Lock()
        self._prefixers: dict[tuple[int, str], LinePrefixer] = {}
        self._tails: dict[int, Tail] = {}
        self._files: dict[tuple[int, str], BinaryIO] = {}
        if directory is not None:
            self._open_files(Path(directory), size)

    def _open_files(self, directory: Path, size: int) -> None:
        width = len(str(size - 1))
        try:
            for rank in range(size):
                folder = directory / f"rank.{rank:0{width}d}"
                folder.mkdir(parents=True, exist_ok=True)
                for stream in STREAMS:
                    self._files[rank, stream] = (folder / stream).open("wb")
        except OSError as error:
            self.close()
            raise UsageError(
                f"cannot write the output of the ranks to {directory}: {error.strerror}"
            ) from None

    def write(self, rank: int, stream: str, data: bytes) -> None:
        """Takes bytes that a rank wrote.

        Args:
            rank: who wrote them.
            stream: "stdout" or "stderr".
            data: any number of bytes; lines may be split between calls.

        Raises:
            OSError: the console or the file cannot be written.
        """
        with self._lock:
            if stream == "stderr":
                self._tails.setdefault(rank, Tail()).feed(data)
            if (rank, stream) in self._files:
                self._files[rank, stream].write(data)
                self._files[rank, stream].flush()
            prefixer = self._prefixers.get((rank, stream))
            if prefixer is None:
                prefixer = LinePrefixer(partial(self._prefix, rank, stream))
                self._prefixers[rank, stream] = prefixer
            self._print(stream, prefixer.feed(data))

    def _prefix(self, rank: int, stream: str) -> str:
        text = f"{self._now()}[{rank}]<{stream}>:"
        if stream not in self._coloured:
            return text
        return f"{_COLOURS[rank % len(_COLOURS)]}{text}{_NO_COLOUR}"

    def stderr_tail(self, rank: int) -> tuple[str, ...]:
        """The last lines that a rank wrote to stderr, at most 20."""
        with self._lock:
            return self._tails[rank].lines() if rank in self._tails else ()

    def finish(self) -> None:
        """Prints the last lines that lack their end.

        Raises:
            OSError: the console cannot be written.
        """
        with self._lock:
            for (_, stream), prefixer in self._prefixers.items():
                self._print(stream, prefixer.finish())

    def close(self) -> None:
        """Closes the files. Idempotent."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _print(self, stream: str, text: str) -> None:
        if not text:
            return
        console = self._consoles[stream]
        try:
            console.write(text)
        except UnicodeEncodeError:
            encoding = console.encoding or "ascii"
            console.write(text.encode(encoding, "replace").decode(encoding))
        console.flush()
