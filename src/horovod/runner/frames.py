"""The messages between a launcher and an agent: kind, rank, length, payload.

Both ends are processes of the same user that are joined by a pipe, so the frames carry no
authentication; the length is still bounded, because ssh may put text of a login script in between.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("!BiI")
GRACE_S = 5.0  # between SIGTERM and SIGKILL, after a STOP frame
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
# How the first frame of an agent, READY, begins. No text of a login script looks like it.
READY_MARK = _HEADER.pack(16, -1, 0)[:-1]


class Kind(enum.IntEnum):
    """What a frame says. Those below READY go to the agent, the others to the launcher."""

    JOB = 1  # payload: AgentJob as JSON
    STOP = 2  # SIGTERM, then SIGKILL after GRACE_S
    KILL = 3  # SIGKILL now
    INVITATION = 4  # find the way to the store; payload: Invitation as JSON
    READY = 16  # the agent runs; payload: its pid in decimal, a space, its version
    STARTED = 17  # a rank runs; payload: its pid in decimal
    STDOUT = 18  # payload: bytes that a rank wrote
    STDERR = 19
    EXITED = 20  # payload: exit code in decimal, negative for a signal
    NOT_STARTED = 21  # payload: exit code in decimal, a space, the reason
    STOPPING = 22  # the agent ends the ranks on its own; payload: why
    DONE = 23  # no process of the job is left on this host
    REACHED = 24  # payload: number of an endpoint of the invitation, in decimal
    TRIED = 25  # every endpoint of the invitation has answered or failed
    NOTE = 26  # payload: one line for --verbose


@dataclass(frozen=True)
class Frame:
    """One message; ``rank`` is -1 where no rank is meant."""

    kind: Kind
    rank: int
    payload: bytes


class FrameError(ValueError):
    """The bytes are not a frame; the other end is not what it should be."""


def encode(kind: Kind, rank: int = -1, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return _HEADER.pack(kind, rank, len(payload)) + payload


class Decoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Adds bytes and yields the frames that are complete now.

        Raises:
            FrameError: the kind is unknown or the length is out of bounds.
        """
        self._pending += data
        while len(self._pending) >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._pending)
            if kind not in Kind._value2member_map_ or length > MAX_PAYLOAD_BYTES:
                raise FrameError(f"not a frame: {bytes(self._pending[:80])!r}")
            end = _HEADER.size + length
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield Frame(Kind(kind), rank, payload)
