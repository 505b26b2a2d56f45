"""What the store of a job has to do when many ranks start at once; ranks are simulated.

    python benchmarks/many_clients.py --ranks 256 1024 4096

A simulated rank asks the store for what a real one asks before it connects with the others: it
publishes itself, and waits for what all others have published. Two processes play all ranks, so
their work counts, too. The store lives in a process of its own, as it does in the launcher.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import horovod
from horovod._rendezvous import StoreServer, make_secret

CROWD = Path(__file__).resolve().parents[1] / "tests" / "unit" / "rendezvous" / "crowd.py"
NUM_PROCESSES = 2
# Of a process that plays ranks and has ended its wait for them.
PATIENCE_S = 20.0
HEAD = "| ranks | s | messages | bytes to the store | bytes from it | of a rank | memory |"


@dataclass(frozen=True)
class Start:
    """What one start took.

    Attributes:
        num_ranks: that were simulated.
        seconds: from the first connection to the last answer.
        sent_bytes, received_bytes: of all ranks.
        messages: requests and answers, without the handshakes.
        store_bytes: resident memory that the process of the store needed more than before, at most.
    """

    num_ranks: int
    seconds: float
    sent_bytes: int
    received_bytes: int
    messages: int
    store_bytes: int

    def row(self) -> str:
        """A line of a table."""
        of_rank = (self.sent_bytes + self.received_bytes) / self.num_ranks
        numbers = (self.sent_bytes, self.received_bytes, of_rank, self.store_bytes)
        to, back, of_rank_mib, memory = (f"{number / 2**20:,.2f} MiB" for number in numbers)
        return (
            f"| {self.num_ranks:,} | {self.seconds:.1f} | {self.messages:,} | {to} | {back} "
            f"| {of_rank_mib} | {memory} |"
        )


def status_bytes(name: str) -> int:
    """Return a number of kilobytes that the system knows of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{name}:")[1].split()[0])


def start(num_ranks: int, timeout_s: float) -> Start:
    """Lets that many ranks meet at a new store.

    Raises:
        CalledProcessError, TimeoutExpired: they did not within the time.
    """
    secret = make_secret()
    environment = {**os.environ, "PYTHONPATH": str(Path(horovod.__file__).parent.parent)}
    share = -(-num_ranks // NUM_PROCESSES)

    def play(first: int) -> list[int]:
        numbers = (server.port, first, min(share, num_ranks - first), num_ranks, timeout_s)
        command = [sys.executable, str(CROWD), server.address, *map(str, numbers)]
        played = subprocess.run(
            command,
            input=secret,
            stdout=subprocess.PIPE,
            env=environment,
            timeout=timeout_s + PATIENCE_S,
            check=True,
        )
        return [int(number) for number in played.stdout.split()]

    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before_bytes = status_bytes("VmRSS")
    with StoreServer(secret) as server, ThreadPoolExecutor(NUM_PROCESSES) as pool:
        began_s = time.monotonic()
        told = list(pool.map(play, range(0, num_ranks, share)))
        took_s = time.monotonic() - began_s
    sent, received, num_messages = map(sum, zip(*told, strict=True))
    store_bytes = status_bytes("VmHWM") - before_bytes
    return Start(num_ranks, took_s, sent, received, num_messages, store_bytes)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each start")
    args = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}\n\n{HEAD}")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    # Each in a process of its own, which has no memory to use again.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for num_ranks in args.ranks:
            print(pool.apply(start, (num_ranks, args.timeout)).row(), flush=True)


if __name__ == "__main__":
    main()
