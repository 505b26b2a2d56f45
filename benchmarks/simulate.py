"""Scaling efficiency of data-parallel training, from the engine's own cost model.

    python benchmarks/simulate.py
    python benchmarks/simulate.py --models vgg16 --gbit-per-s 10 --ranks 8,64,512
    python benchmarks/simulate.py --compression int8

README.md in this folder says what is simulated and what is left out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from models import Model, models

from horovod import _native

BYTES_PER_ELEMENT = 4
MIB = 1024 * 1024


@dataclass(frozen=True)
class Cluster:
    """Equal hosts.

    Attributes:
        ranks: in the job.
        ranks_per_host: of them on each host; the last host may have fewer.
        bytes_per_s: of each host's link in one direction.
        latency_s: of a hop between two hosts.
        memory_bytes_per_s: that the ranks of a host read and write together.
        negotiation_s: that the coordinator needs for each rank and batch.
        algorithm: of allreduce; auto for the best.
        quantized: whether values travel between hosts in 8 bits.
    """

    ranks: int
    ranks_per_host: int
    bytes_per_s: float
    latency_s: float
    memory_bytes_per_s: float
    negotiation_s: float
    algorithm: str
    quantized: bool = False

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return -(-self.ranks // self.ranks_per_host)


@dataclass(frozen=True)
class Step:
    """One simulated training step.

    Attributes:
        model, ranks, hosts: what was simulated.
        step_s: seconds, with communication.
        efficiency: time without communication / time with it.
        batches: how many allreduces the gradients traveled in.
        algorithms: that were used, with the number of bytes in each.
    """

    model: str
    ranks: int
    hosts: int
    step_s: float
    efficiency: float
    batches: int
    algorithms: dict[str, int]


@cache
def allreduce_s(cluster: Cluster, num_bytes: int) -> tuple[str, float]:
    """Algorithm and seconds of one allreduce."""
    if cluster.ranks == 1:
        return "none", 0.0
    costs = _native.CostConstants(
        network_latency_s=cluster.latency_s,
        network_bytes_per_s=cluster.bytes_per_s,
        memory_bytes_per_s=cluster.memory_bytes_per_s,
    )
    hosts = [rank // cluster.ranks_per_host for rank in range(cluster.ranks)]
    algorithm, seconds = _native.estimate_allreduce(
        hosts, num_bytes, algorithm=cluster.algorithm, quantized=cluster.quantized, costs=costs
    )
    return algorithm, seconds


def simulate(model: Model, cluster: Cluster, fusion_bytes: int) -> Step:
    """One step: what is ready when the network is free becomes a batch, as in the engine."""
    waiting = list(model.gradients)
    free_s, batches = model.forward_s, 0
    algorithms: dict[str, int] = {}
    while waiting:
        ready_s = model.forward_s + waiting[0].ready * model.backward_s
        start_s = max(free_s, ready_s)
        batch_bytes, taken = 0, 0
        for gradient in waiting:
            num_bytes = gradient.elements * BYTES_PER_ELEMENT
            late = model.forward_s + gradient.ready * model.backward_s > start_s
            if late or (taken and batch_bytes + num_bytes > fusion_bytes):
                break
            batch_bytes, taken = batch_bytes + num_bytes, taken + 1
        del waiting[:taken]
        algorithm, seconds = allreduce_s(cluster, batch_bytes)
        negotiation_s = 2 * cluster.latency_s + cluster.ranks * cluster.negotiation_s
        free_s = start_s + seconds + (negotiation_s if cluster.ranks > 1 else 0.0)
        batches += 1
        algorithms[algorithm] = algorithms.get(algorithm, 0) + batch_bytes
    step_s = max(free_s, model.step_s)
    return Step(
        model.name,
        cluster.ranks,
        cluster.hosts,
        step_s,
        model.step_s / step_s,
        batches,
        algorithms,
    )


def print_table(steps: list[Step], sizes: list[int]) -> None:
    """Efficiency in percent: a row for each model, a column for each number of ranks."""
    print(f"{'ranks':>14}" + "".join(f"{ranks:>8}" for ranks in sizes))
    for name in dict.fromkeys(step.model for step in steps):
        cells = [f"{100 * step.efficiency:>7.1f}%" for step in steps if step.model == name]
        print(f"{name:>14}" + "".join(cells))


def describe(step: Step) -> str:
    """One line: batches, and how much went which way."""
    total = sum(step.algorithms.values())
    ways = ", ".join(f"{way} {100 * part / total:.0f}%" for way, part in step.algorithms.items())
    return (
        f"{step.model} on {step.ranks} ranks: {1000 * step.step_s:.1f} ms, {step.batches} batches, "
        f"bytes by {ways}"
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(models()), help="comma between")
    parser.add_argument("--ranks", default="8,16,32,64,128,256,512,1024,2048,4096")
    parser.add_argument("--ranks-per-host", type=int, default=4)
    parser.add_argument("--gbit-per-s", type=float, default=25.0, help="of each host's link")
    parser.add_argument("--latency-us", type=float, default=40.0, help="of a hop between hosts")
    parser.add_argument("--memory-gb-per-s", type=float, default=80.0, help="of each host")
    parser.add_argument("--negotiation-us", type=float, default=1.0, help="per rank and batch")
    parser.add_argument("--fusion-mib", type=float, default=64.0)
    parser.add_argument(
        "--speedup", type=float, default=1.0, help="of the GPU over the one assumed"
    )
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--compression", choices=("none", "int8"), default="none")
    parser.add_argument("--details", action="store_true", help="batches and algorithms of each")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    args.models = args.models.split(",")
    args.ranks = [int(ranks) for ranks in args.ranks.split(",")]
    unknown = [name for name in args.models if name not in models()]
    if unknown:
        parser.error(f"{', '.join(unknown)} is not among {', '.join(models())}")
    if min(*args.ranks, args.ranks_per_host) < 1:
        parser.error("--ranks and --ranks-per-host are at least 1")
    positive = (args.gbit_per_s, args.latency_us, args.memory_gb_per_s, args.speedup)
    if min(positive) <= 0 or min(args.fusion_mib, args.negotiation_us) < 0:
        parser.error("speeds and times must be above 0")
    return args


def main() -> None:
    args = parse_args()
    steps = []
    for name in args.models:
        model = models()[name].faster(args.speedup)
        for ranks in args.ranks:
            cluster = Cluster(
                ranks=ranks,
                ranks_per_host=args.ranks_per_host,
                bytes_per_s=args.gbit_per_s * 1e9 / 8,
                latency_s=args.latency_us * 1e-6,
                memory_bytes_per_s=args.memory_gb_per_s * 1e9,
                negotiation_s=args.negotiation_us * 1e-6,
                algorithm=args.algorithm,
                quantized=args.compression == "int8",
            )
            steps.append(simulate(model, cluster, int(args.fusion_mib * MIB)))
    print(
        f"Scaling efficiency, simulated: {args.ranks_per_host} ranks a host, "
        f"{args.gbit_per_s:g} Gbit/s, {args.latency_us:g} us between hosts, "
        f"batches of {args.fusion_mib:g} MiB, algorithm {args.algorithm}, "
        f"compression {args.compression}"
    )
    print_table(steps, args.ranks)
    for step in steps if args.details else ():
        print(describe(step))
    if args.json:
        args.json.write_text(json.dumps([asdict(step) for step in steps], indent=1) + "\n")


if __name__ == "__main__":
    main()
