"""Allreduce between emulated hosts: Horovod, gloo and Open MPI in the same processes, in turn.

    python benchmarks/between_hosts.py
    python benchmarks/between_hosts.py --rate-mbit 0 --bytes 4 67108864 --libraries horovod,gloo
    python benchmarks/between_hosts.py --rate-mbit 25000 --libraries horovod,gloo --iperf3 1 4

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import emulated
import measure
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

WIRE_BYTES = 32 * measure.MIB
WIRE_TIMEOUT_S = 60.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ranks-per-host", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bytes", type=int, nargs="+", default=[64 * measure.MIB])
    emulated.add_rate_argument(parser)
    parser.add_argument(
        "--iperf3", type=int, nargs="+", default=[], help="also measure iperf3 with so many streams"
    )
    measure.add_common_arguments(parser, "size", 20.0)
    parser.set_defaults(libraries=["horovod", "gloo", "mpi"])
    return parser.parse_args()


def start_jobs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One job for each number of hosts and of ranks on a host."""
    emulated.check_possible()
    for hosts in args.hosts:
        for ranks_per_host in args.ranks_per_host:
            shape = emulated.Shape(hosts, ranks_per_host, args.rate_mbit or None)
            with_mpi = "mpi" in args.libraries
            run = emulated.run_on_hosts(__file__, sys.argv[1:], shape, with_mpi)
            iperf3 = {n: emulated.iperf3_mbit_per_s(shape, n) for n in args.iperf3}
            yield {"title": str(shape), **run, "iperf3_mbit_per_s": iperf3}


def measure_wire(seat: measure.Seat, peer: int) -> float:
    """Mbit/s of payload that rank 0 and ``peer`` sustain in both directions over one connection."""
    rate = 0.0
    listener = socket.create_server((seat.address, 0)) if seat.rank == 0 else None
    address = seat.exchange(listener.getsockname() if listener else None)[0]
    if seat.rank in (0, peer):
        if listener:
            listener.settimeout(WIRE_TIMEOUT_S)
            connection = listener.accept()[0]
            listener.close()
        else:
            connection = socket.create_connection(tuple(address), WIRE_TIMEOUT_S)
        with connection:
            rate = _exchange_bytes(connection)
    return min(rate for rate in seat.exchange(rate) if rate > 0)


def _exchange_bytes(connection: socket.socket) -> float:
    connection.settimeout(WIRE_TIMEOUT_S)
    data = bytes(measure.MIB)
    num_sent = WIRE_BYTES // len(data)

    def send() -> None:
        for _ in range(num_sent):
            connection.sendall(data)

    began_s = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    missing, room = WIRE_BYTES, bytearray(measure.MIB)
    while missing:
        received = connection.recv_into(room)
        if received == 0:
            raise ConnectionResetError("the peer has closed the connection")
        missing -= received
    sender.join(WIRE_TIMEOUT_S)
    return WIRE_BYTES * 8 / 1e6 / (time.perf_counter() - began_s)


def measure_size(
    seat: measure.Seat,
    libraries: measure.Libraries,
    num_bytes: int,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """One row of the table; all libraries reduce the same memory."""
    tensor = torch.zeros(num_bytes // 4)
    contestants = [
        measure.enter(seat, name, library, [tensor], f"between.{num_bytes}")
        for name, library in libraries.items()
    ]
    row = measure.summarize(measure.run_rounds(seat, contestants, args.seconds))
    return {"bytes": num_bytes, **row}


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    load_average = os.getloadavg()[0]
    addresses = seat.exchange(seat.address)
    num_hosts = len(set(addresses))
    peer = next(rank for rank, address in enumerate(addresses) if address != addresses[0])
    wire_mbit = measure_wire(seat, peer)
    libraries = measure.open_libraries(args.libraries, seat)
    rows = []
    for num_bytes in args.bytes:
        rows.append(measure_size(seat, libraries, num_bytes, args))
        seat.say(f"{num_hosts} hosts, {seat.size} ranks: {measure.show_bytes(num_bytes)} done")
        for numbers in rows[-1]["contestants"].values():
            bits = 8 * num_bytes * 2 * (num_hosts - 1) / num_hosts
            numbers["bus_mbit_per_s"] = bits / numbers["median_us"]
    measure.close_libraries(seat, libraries)
    return {
        "hosts": num_hosts,
        "ranks": seat.size,
        "rate_mbit": args.rate_mbit,
        "wire_mbit_per_s": wire_mbit,
        "load_average": load_average,
        "sizes": rows,
    }


def show_run(run: dict[str, Any]) -> str:
    """The table of one job."""
    header = ["size", "library", "p10 / median / p90", "bus Mbit/s", "of the line", "rounds"]
    header.append("Horovod is faster by")
    rows = []
    for size in run["sizes"]:
        for name, numbers in size["contestants"].items():
            rate = numbers["bus_mbit_per_s"]
            share = f"{rate / run['rate_mbit']:.1%}" if run["rate_mbit"] else "-"
            speedup = size["speedup"].get(name)
            rows.append(
                [
                    measure.show_bytes(size["bytes"]),
                    measure.LIBRARIES[name],
                    measure.show_times(numbers),
                    f"{rate:.0f}",
                    share,
                    str(size["rounds"]),
                    "" if speedup is None else measure.show_ratio(speedup),
                ]
            )
    title = (
        f"{run.get('title', '')}; one TCP connection, both ways at once: "
        f"{run['wire_mbit_per_s']:.0f} Mbit/s; load average before: {run['load_average']:.1f}"
    )
    for streams, rate in run.get("iperf3_mbit_per_s", {}).items():
        title += f"; iperf3, {streams} each way: {rate:.0f} Mbit/s"
    return f"{title}\n\n{measure.table(header, rows)}\n"


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run, start_jobs)
