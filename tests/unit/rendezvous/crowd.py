"""Many clients of a store in one thread: python crowd.py ADDRESS PORT FIRST COUNT SIZE SECONDS.

Each of COUNT clients connects, publishes what a rank does, and waits until all SIZE are there; this
may take SECONDS. The secret comes on stdin. Prints how many bytes all clients have sent and
received in how many messages, without the handshakes.
"""

from __future__ import annotations

import asyncio
import random
import sys
import uuid
from typing import TYPE_CHECKING

from horovod._rendezvous import messages
from horovod._rendezvous.answers import found_in
from horovod._rendezvous.framing import FrameReader, FrameWriter
from horovod._rendezvous.handshake import ClientHandshake, Hello, Session
from horovod._rendezvous.local import make_unix_name
from horovod._rendezvous.roster import RankInfo

if TYPE_CHECKING:
    from horovod._rendezvous.table import Found


def value_of(rank: int, size: int) -> bytes:
    """What a rank publishes, where each host has eight."""
    host = f"node-{rank // 8}.cluster"
    boot = uuid.UUID(int=random.Random(host).getrandbits(128))
    return RankInfo(
        rank=rank,
        size=size,
        host=host,
        pid=7919 * rank,
        host_key=f"{host}/{boot}/4026531833",
        version="1.0.0",
        tcp_address=f"10.0.{rank // 8 % 256}.34",
        tcp_port=31 * rank % 65536,
        unix_name=make_unix_name(),
        num_streams=2,
        free_port=0,
    ).to_json()


class Client:
    """One connection to the store on an event loop.

    Attributes:
        sent, received: bytes of requests and answers.
        messages: the number of both.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.sent = self.received = self.messages = 0

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

    async def request(self, header: dict[str, object], *values: bytes) -> Found:
        parts = self._frames_out.frame(messages.encode(header, values))
        self._writer.writelines(parts)
        self.sent += sum(map(len, parts))
        body = None
        while body is None:
            num_bytes = await self._fill(self._frames_in.buffer())
            self.received += num_bytes
            body = self._frames_in.filled(num_bytes)
        self.messages += 2
        answer, answer_values = messages.decode(body)
        return found_in(answer, answer_values) if header["op"] == "wait" else {}


async def act(
    where: tuple[str, int],
    secret: bytes,
    rank: int,
    size: int,
    timeout_s: float,
    turns: asyncio.Semaphore,
) -> Client:
    """What the start of a rank asks of the store."""
    # A process of its own proves itself as soon as it is connected; here one thread plays them all.
    async with turns:
        client = Client(*await asyncio.open_connection(*where))
        await client.prove(secret)
    value = value_of(rank, size)
    await client.request({"op": "set", "key": f"latest/{rank}"}, b"0.0")
    await client.request({"op": "add", "key": "job"}, value)
    await client.request({"op": "add", "key": f"rank/{rank}"}, value)
    keys = [f"rank/{other}" for other in range(size)]
    wait = {"op": "wait", "keys": keys, "stop_key": "failed", "timeout_s": timeout_s}
    answer = await client.request(wait)
    assert list(answer) == keys, f"client {rank} heard of {len(answer)} of {size}"
    return client


async def main() -> None:
    address, port, first, count, size = sys.argv[1], *map(int, sys.argv[2:6])
    timeout_s = float(sys.argv[6])
    secret = sys.stdin.buffer.read()
    turns = asyncio.Semaphore(32)
    acts = (
        act((address, port), secret, rank, size, timeout_s, turns)
        for rank in range(first, first + count)
    )
    clients = await asyncio.wait_for(asyncio.gather(*acts), timeout_s)
    sums = [[each.sent, each.received, each.messages] for each in clients]
    print(*map(sum, zip(*sums, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
