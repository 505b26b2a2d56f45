"""What the store of a job has to do when many ranks start at once; ranks are simulated.

    python benchmarks/many_clients.py --ranks 256 1024 4096

A simulated rank asks the store for what a real one asks before it connects with the others: it
publishes itself, and waits for what all others have published. Two processes play all ranks, so
their work counts, too. The store lives in this process, as it does in the launcher.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import horovod
from horovod._rendezvous import StoreServer, make_secret

CROWD = Path(__file__).resolve().parents[1] / "tests" / "unit" / "rendezvous" / "crowd.py"
NUM_PROCESSES = 2
SAMPLE_S = 0.02
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


class Memory:
    """Looks at the resident memory of this process until it is told to stop.

    Attributes:
        most_bytes: seen so far.
    """

    def __init__(self) -> None:
        self.first_bytes = self.most_bytes = self._bytes()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.most_bytes = max(self.most_bytes, self._bytes())

    @staticmethod
    def _bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start(num_ranks: int, timeout_s: float) -> Start:
    """Lets that many ranks meet at a new store.

    Raises:
        SystemExit: they did not within the time.
    """
    secret = make_secret()
    source = str(Path(horovod.__file__).parent.parent)
    share = -(-num_ranks // NUM_PROCESSES)
    with Memory() as memory, StoreServer(secret) as server:
        began_s = time.monotonic()
        crowds = []
        for first in range(0, num_ranks, share):
            words = [server.address, server.port, first, min(share, num_ranks - first), num_ranks]
            command = [sys.executable, str(CROWD), *map(str, words), str(timeout_s)]
            crowd = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": source},
            )
            crowds.append(crowd)
        for crowd in crowds:
            assert crowd.stdin is not None
            with crowd.stdin:
                crowd.stdin.write(secret)
        told = [crowd.stdout.read().split() for crowd in crowds if crowd.stdout is not None]
        failed = any([crowd.wait() for crowd in crowds])
        took_s = time.monotonic() - began_s
    if failed:
        raise SystemExit(f"{num_ranks} ranks did not meet within {timeout_s:g} s")
    sent, received, num_messages = (sum(map(int, column)) for column in zip(*told, strict=True))
    store_bytes = memory.most_bytes - memory.first_bytes
    return Start(num_ranks, took_s, sent, received, num_messages, store_bytes)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each start")
    args = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}\n\n{HEAD}")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for num_ranks in args.ranks:
        print(start(num_ranks, args.timeout).row(), flush=True)


if __name__ == "__main__":
    main()
