"""Many clients of a store in one thread: python crowd.py ADDRESS PORT FIRST COUNT SIZE < secret.

Each of COUNT clients connects, publishes what a rank does, and waits until all SIZE are there.
"""

from __future__ import annotations

import asyncio
import sys

from horovod._rendezvous import messages
from horovod._rendezvous.framing import FrameReader, FrameWriter
from horovod._rendezvous.handshake import ClientHandshake, Hello, Session

TIMEOUT_S = 60.0
VALUE = b"v" * 300  # about what a rank publishes


class Client:
    """One connection to the store on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def _fill(self, view: memoryview) -> int:
        data = await self._reader.readexactly(len(view))
        view[:] = data
        return len(data)

    async def prove(self, secret: bytes) -> None:
        handshake = ClientHandshake(secret, Hello("store"))
        self._writer.write(handshake.opening)
        while handshake.session is None:
            self._writer.write(handshake.filled(await self._fill(handshake.buffer())))
        session: Session = handshake.session
        self._frames_out = FrameWriter(session.send_key)
        self._frames_in = FrameReader(session.receive_key)

    async def request(self, header: dict[str, object], *values: bytes) -> dict[str, object]:
        self._writer.writelines(self._frames_out.frame(messages.encode(header, values)))
        body = None
        while body is None:
            body = self._frames_in.filled(await self._fill(self._frames_in.buffer()))
        return messages.decode(body)[0]


async def act(
    address: str, port: int, secret: bytes, rank: int, size: int, turns: asyncio.Semaphore
) -> None:
    """What the start of a rank asks of the store."""
    # A process of its own proves itself as soon as it is connected; here one thread plays them all.
    async with turns:
        client = Client(*await asyncio.open_connection(address, port))
        await client.prove(secret)
    await client.request({"op": "add", "key": f"rank/{rank}"}, VALUE)
    keys = [f"rank/{other}" for other in range(size)]
    wait = {"op": "wait", "keys": keys, "stop_key": "failed", "timeout_s": TIMEOUT_S}
    answer = await client.request(wait)
    assert answer["keys"] == keys, f"client {rank} heard of {len(answer['keys'])} of {size}"


async def main() -> None:
    address, port, first, count, size = sys.argv[1], *map(int, sys.argv[2:])
    secret = sys.stdin.buffer.read()
    ranks = range(first, first + count)
    turns = asyncio.Semaphore(32)
    acts = (act(address, port, secret, rank, size, turns) for rank in ranks)
    await asyncio.wait_for(asyncio.gather(*acts), TIMEOUT_S)


if __name__ == "__main__":
    asyncio.run(main())
