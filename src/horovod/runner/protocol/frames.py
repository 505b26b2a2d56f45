"""The messages between a launcher and an agent: kind, worker, length, payload.

Both ends are processes of the same user that are joined by a pipe, so the frames carry no
authentication; the length is still bounded, because ssh may put text of a login script in between.
"""

from __future__ import annotations

import enum
import signal
import struct
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.bounds import name_in, number_in

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("!BiI")
# Between SIGTERM and SIGKILL when the job is lost anyway. Who stops it from outside gives more.
GRACE_S = 5.0
# So much of the ranks' output an agent may have on its way to a console that takes nothing.
WINDOW_BYTES = 1024 * 1024
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
# How the first frame of an agent, READY, begins. No text of a login script looks like it.
READY_MARK = _HEADER.pack(16, -1, 0)[:-1]


class Kind(enum.IntEnum):
    """The kinds of frames. Those below READY go to the agent, the others to the launcher."""

    JOB = 1  # payload: AgentJob as JSON
    STOP = 2  # payload: a signal for the ranks, a space, the seconds from it to SIGKILL
    KILL = 3  # SIGKILL now
    INVITATION = 4  # find the way to the store; payload: Invitation as JSON
    TAKEN = 5  # payload: how many more bytes of output the console took, in decimal
    START_WORKER = 6  # one more; payload: WorkerJob as JSON
    END_WORKER = 7  # one, while others go on; payload: as of STOP
    READY = 16  # the agent runs; payload: its pid in decimal, a space, its version
    STARTED = 17  # a worker runs; payload: its pid in decimal
    STDOUT = 18  # payload: bytes that a worker wrote
    STDERR = 19
    EXITED = 20  # payload: exit code in decimal, negative for a signal
    NOT_STARTED = 21  # payload: exit code in decimal, a space, the reason
    STOPPING = 22  # the agent ends the ranks on its own; payload: the signal that told it to, or 0,
    # a space, why
    DONE = 23  # no process of the job is left on this host
    REACHED = 24  # payload: number of an endpoint of the invitation, own address on the way, port
    TRIED = 25  # every endpoint of the invitation has answered or failed
    NOTE = 26  # payload: one line for --verbose
    DROPPED = 27  # payload: how many bytes of a rank's output were dropped at the end, in decimal
    LEFT_RUNNING = 28  # payload: what the ranks left running, and the agent ends


@dataclass(frozen=True)
class Frame:
    """One message; ``worker`` is -1 where none is meant, and otherwise no rank but an identity."""

    kind: Kind
    worker: int
    payload: bytes


@dataclass(frozen=True)
class Stop:
    """A request to end the ranks.

    Attributes:
        signum: what they get.
        grace_s: from then until SIGKILL.
    """

    signum: int = signal.SIGTERM
    grace_s: float = GRACE_S

    def to_bytes(self) -> bytes:
        """The payload of a STOP frame."""
        return b"%d %r" % (self.signum, self.grace_s)

    @staticmethod
    def from_bytes(payload: bytes) -> Stop:
        """Reads the payload of a STOP frame.

        Raises:
            FrameError: it is something else.
        """
        signum, _, grace_s = payload.partition(b" ")
        try:
            return Stop(signal.Signals(int(signum)), float(grace_s))
        except ValueError:
            raise FrameError(f"not how to stop: {payload[:80]!r}") from None


STOP_SOON = Stop()


class FrameError(ValueError):
    """The bytes are not a frame; the other end is not what it should be."""


def number_of(text: bytes | str, least: int = -(2**31), most: int = 2**31 - 1) -> int:
    """Return the number in a payload.

    Raises:
        FrameError: it is something else, or out of bounds.
    """
    try:
        return number_in(text, least, most)
    except ValueError:
        raise FrameError(f"not a number: {text[:80]!r}") from None


@dataclass(frozen=True)
class Reached:
    """What an agent says of an endpoint of the invitation that answered it.

    Attributes:
        endpoint: its number in the invitation.
        own_address: of the agent's host, on the way there.
        free_port: that the agent keeps for rank 0; 0 if it could not get one.
    """

    endpoint: int
    own_address: str
    free_port: int

    def to_bytes(self) -> bytes:
        """The payload of a frame."""
        return f"{self.endpoint} {self.own_address} {self.free_port}".encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Reached:
        """Return what :meth:`to_bytes` wrote.

        Raises:
            FrameError: the payload is something else.
        """
        try:
            endpoint, address, port = payload.decode("ascii").split(" ")
            return cls(number_of(endpoint, 0), name_in(address), number_of(port, 0, 65535))
        except ValueError:
            raise FrameError(f"not an endpoint that was reached: {payload[:80]!r}") from None


def encode(kind: Kind, worker: int = -1, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return header(kind, worker, len(payload)) + payload


def header(kind: Kind, worker: int, num_bytes: int) -> bytes:
    """Return the header of a payload."""
    return _HEADER.pack(kind, worker, num_bytes)


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
            kind, worker, length = _HEADER.unpack_from(self._pending)
            if kind not in Kind._value2member_map_ or length > MAX_PAYLOAD_BYTES:
                raise FrameError(f"not a frame: {bytes(self._pending[:80])!r}")
            end = _HEADER.size + length
            if len(self._pending) < end:
                return
            with memoryview(self._pending) as view:
                payload = bytes(view[_HEADER.size : end])
            del self._pending[:end]
            yield Frame(Kind(kind), worker, payload)
