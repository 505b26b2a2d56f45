"""Lines in streams of bytes: prefixes in front of them, and the last ones of a stream.

Each byte is looked at a fixed number of times, however a stream is cut into pieces: what is held
back is never searched again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# A line that is longer than this is cut, so that a rank that never ends its line cannot fill the
# launcher's memory.
MAX_LINE_BYTES = 1024 * 1024
TAIL_LINES = 20
_MAX_TAIL_CHARS = 500
_MAX_TAIL_BYTES = 4 * _MAX_TAIL_CHARS  # no character is longer


class LinePrefixer:
    r"""Puts a prefix in front of each line of a stream of bytes.

    A line ends at ``\n``, ``\r`` or ``\r\n``; ending at ``\r`` lets progress bars appear at once.
    Bytes are UTF-8; a character may be split between two calls, an invalid byte becomes U+FFFD.

    Args:
        prefix: computes the text in front of lines, at the time when they end; without line ends.
    """

    def __init__(self, prefix: Callable[[], bytes]) -> None:
        self._prefix = prefix
        self._held = bytearray()
        self._after_return = False
        self._begun = False  # the line whose rest comes now is out already, up to here

    @property
    def holds_text(self) -> bool:
        """Whether a line has begun that lacks its end, and a part of it is not out yet."""
        return bool(self._held)

    @property
    def has_begun(self) -> bool:
        """Whether the last of what came out is the beginning of a line."""
        return self._begun

    def feed(self, data: bytes) -> bytes:
        """Adds bytes; returns the lines that are complete now, with their prefixes, as UTF-8."""
        parts: list[bytes] = []
        if len(data) <= MAX_LINE_BYTES:
            self._add(data, parts)
        else:
            for at in range(0, len(data), MAX_LINE_BYTES):
                self._add(data[at : at + MAX_LINE_BYTES], parts)
        return _valid(b"".join(parts))

    def finish(self) -> bytes:
        """Returns the last line if it lacks its end; the end is added."""
        if not self._held and not self._begun:
            return b""
        line = b"%b%b\n" % (self._prefix_once(), bytes(self._held))
        self._held.clear()
        return _valid(line)

    def begin(self) -> bytes:
        """Returns what is there of a line that lacks its end; its rest comes without a prefix."""
        end = _end_of_characters(self._held)
        if end == 0:
            return b""
        begun = self._prefix_once() + bytes(self._held[:end])
        self._begun = True
        del self._held[:end]
        return _valid(begun)

    def break_off(self) -> None:
        """Gives the rest of a line that has begun a prefix, as something else came in between."""
        self._begun = False

    def _prefix_once(self) -> bytes:
        """Nothing if the line has its prefix."""
        prefix = b"" if self._begun else self._prefix()
        self._begun = False
        return prefix

    def _add(self, data: bytes, parts: list[bytes]) -> None:
        if self._after_return and data:
            self._after_return = False
            if data.startswith(b"\n"):  # the second half of "\r\n"; its first half is out already
                parts.append(b"\n")
                data = data[1:]
        line_feed = data.rfind(b"\n")
        end = max(line_feed, data.rfind(b"\r", line_feed + 1)) + 1
        if end == 0:
            self._hold(data, parts)
            return
        self._after_return = data.endswith(b"\r")
        first = len(self._held) and _end_of_first_line(data)
        if len(self._held) + first > MAX_LINE_BYTES:
            self._hold(data[:first], parts)
            data, end = data[first:], end - first
        prefix = self._prefix()
        parts += (b"" if self._begun else prefix, bytes(self._held))
        self._begun = False
        self._held.clear()
        _add_prefixed(data[:end], prefix, parts)
        self._hold(data[end:], parts)

    def _hold(self, data: bytes, parts: list[bytes]) -> None:
        """Keeps a part of a line, without what has to be cut off from it."""
        self._held += data
        while len(self._held) > MAX_LINE_BYTES:
            cut = _boundary(self._held, MAX_LINE_BYTES)
            parts += (self._prefix_once(), bytes(self._held[:cut]), b"\n")
            del self._held[:cut]


def _add_prefixed(lines: bytes, prefix: bytes, parts: list[bytes]) -> None:
    """Puts the prefix in front of all lines but the first, all at once; the last has its end."""
    end = 2 if lines.endswith(b"\r\n") else 1
    inner = lines[:-end].replace(b"\n", b"\n" + prefix)
    if b"\r" in inner:
        inner = inner.replace(b"\r", b"\r" + prefix)
        inner = inner.replace(b"\r%b\n%b" % (prefix, prefix), b"\r\n" + prefix)
    parts += (inner, lines[-end:])


def _end_of_first_line(data: bytes) -> int:
    """Return the position of the first line end; there is one."""
    line_feed, carriage_return = data.find(b"\n"), data.find(b"\r")
    if line_feed < 0 or carriage_return < 0:
        return max(line_feed, carriage_return)
    return min(line_feed, carriage_return)


def _boundary(data: bytearray, at: int) -> int:
    """A place at which no character is cut in two, at most 3 bytes in front of the given one."""
    for place in range(at, at - 4, -1):
        if data[place] & 0xC0 != 0x80:
            return place
    return at  # this is no UTF-8


def _end_of_characters(data: bytearray) -> int:
    """The length without the first bytes of a character whose last ones are still to come."""
    for back in range(1, min(len(data), 3) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if wanted > back else len(data)
    return len(data)


def _valid(data: bytes) -> bytes:
    if data.isascii():
        return data
    return data.decode(errors="replace").encode()


class Tail:
    """The last lines of a stream of bytes, as a terminal would show them."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._held = b""

    def feed(self, data: bytes) -> None:
        """Adds bytes."""
        first, *others = data.rsplit(b"\n", TAIL_LINES + 1)
        if not others:
            if len(self._held) < _MAX_TAIL_BYTES or b"\r" in data or self._held.endswith(b"\r"):
                self._held = _visible(self._held + data)
            return
        *complete, last = others
        # If there are further lines in front, they and what was held are pushed out.
        self._lines.append(_visible(self._held + first))
        self._lines.extend(map(_visible, complete))
        self._held = _visible(last)

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first, without the empty ones at the end."""
        lines = [
            line.rstrip(b"\r").decode(errors="replace")[:_MAX_TAIL_CHARS]
            for line in [*self._lines, self._held][-TAIL_LINES:]
        ]
        while lines and not lines[-1].strip():
            lines.pop()
        return tuple(lines)


def _visible(line: bytes) -> bytes:
    """The part of a line that can still be seen once more has been added.

    A carriage return lets the rest overwrite the line; the last one is kept, as the rest may be
    still to come.
    """
    shown = line.rstrip(b"\r").rpartition(b"\r")[2][:_MAX_TAIL_BYTES]
    return shown + b"\r" if line.endswith(b"\r") else shown
