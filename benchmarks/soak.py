"""Soak: hours of mixed traffic, in which nothing may grow, leak or come out wrong.

    python benchmarks/soak.py --minutes 30

All ranks run one random scene after the other, the same on all of them: named and unnamed
operations of all kinds and sizes, groups, process sets that come and go, rounds of join(), rows of
varying number, names that are never used again, and disagreements that are caught. Every 10 s rank
0 prints what all ranks use, and how long an allreduce of 4 bytes takes in the midst of it. At the
end the last tenth of the run is compared with the second one. The exit status is not 0 if the
memory of a rank has grown by more than 2 %, or if it holds other descriptors.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, Any

import torch

import horovod
import horovod.torch as hvd
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_GROWTH = 0.02
PRINT_EVERY_S = 10.0
MIB = 1 << 20
PROBES = 20
# Of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@dataclass
class Sample:
    """What all ranks use at one moment.

    Attributes:
        at_s: since the start of the run.
        resident_bytes, descriptors, threads, tensors: of each rank; tensors are those alive, which
            an operation in flight would hold.
        median_us, p99_us: of the allreduces of 4 bytes since the sample before, on rank 0.
        operations: that rank 0 has submitted so far.
    """

    at_s: float
    resident_bytes: list[int]
    descriptors: list[int]
    threads: list[int]
    tensors: list[int]
    median_us: float
    p99_us: float
    operations: int

    def __str__(self) -> str:
        resident = " ".join(f"{size / MIB:.1f}" for size in self.resident_bytes)
        return (
            f"{self.at_s:6.0f} s | RSS {resident} MiB | descriptors {_words(self.descriptors)} | "
            f"threads {_words(self.threads)} | 4 B allreduce {self.median_us:.1f} us median, "
            f"{self.p99_us:.1f} us p99 | {self.operations} operations"
        )


@dataclass
class Verdict:
    """What the last tenth of the run says about the second one.

    Attributes:
        memory_growth: of the rank that has grown most, as a fraction.
        latency_growth: of the median time of an allreduce of 4 bytes, as a fraction.
        same_descriptors, same_threads, same_tensors: whether these are equal on each rank.
    """

    memory_growth: float
    latency_growth: float
    same_descriptors: bool
    same_threads: bool
    same_tensors: bool

    @property
    def passed(self) -> bool:
        return self.memory_growth <= MOST_GROWTH and self.same_descriptors

    def __str__(self) -> str:
        return (
            f"memory {self.memory_growth:+.2%}, latency {self.latency_growth:+.1%}, descriptors "
            f"{_same(self.same_descriptors)}, threads {_same(self.same_threads)}, live tensors "
            f"{_same(self.same_tensors)}: {'passed' if self.passed else 'FAILED'}"
        )


def _words(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def _same(same: bool) -> str:
    return "equal" if same else "DIFFERENT"


def judge(samples: list[Sample]) -> Verdict:
    """Compares the last tenth of the samples with the second tenth."""
    tenth = max(1, len(samples) // 10)
    early, late = samples[tenth : 2 * tenth], samples[-tenth:]

    def resident(some: list[Sample], rank: int) -> float:
        return mean(sample.resident_bytes[rank] for sample in some)

    growth = [
        resident(late, rank) / resident(early, rank) - 1
        for rank in range(len(early[0].resident_bytes))
    ]
    latency = median(s.median_us for s in late) / median(s.median_us for s in early) - 1
    first, last = early[0], late[-1]
    return Verdict(
        max(growth),
        latency,
        first.descriptors == last.descriptors,
        first.threads == last.threads,
        first.tensors == last.tensors,
    )


def require(condition: bool, what: str) -> None:
    """Ends the run if a result is wrong; assert would be optional."""
    if not condition:
        raise RuntimeError(f"rank {hvd.rank()}: wrong result of {what}")


def fails(call: Callable[[], object], kind: type[Exception] = hvd.HorovodInternalError) -> None:
    """Ends the run if a call does not raise what it must."""
    try:
        call()
    except kind:
        return
    require(False, f"a call that must raise {kind.__name__}")


@dataclass
class Traffic:
    """The scenes of one rank.

    Attributes:
        common: draws the same on all ranks.
        own: draws something else on each.
        even, odd: sets that stay for the whole run.
    """

    common: random.Random
    own: random.Random
    even: hvd.ProcessSet
    odd: hvd.ProcessSet
    num_scenes: int = 0
    total: int = field(default_factory=lambda: hvd.size() * (hvd.size() - 1) // 2)

    def shuffled(self, count: int) -> list[int]:
        """Indices in an order of this rank's own."""
        order = list(range(count))
        self.own.shuffle(order)
        return order

    def gradients(self) -> None:
        """Named, in place, in any order, over and over."""
        counts = [self.common.choice((1, 10, 1000, 5000, 40_000)) for _ in range(30)]
        # As many names as counts, so that a name stands for the same shape again.
        names = [f"gradient.{i}.{count}" for i, count in enumerate(counts)]
        tensors = [torch.full((count,), float(hvd.rank())) for count in counts]
        handles = {
            i: hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum)
            for i in self.shuffled(len(counts))
        }
        for i in self.shuffled(len(counts)):
            require(hvd.synchronize(handles[i])[-1].item() == self.total, names[i])

    def unnamed(self) -> None:
        """All kinds, one after the other."""
        size, rank = hvd.size(), hvd.rank()
        tensor = torch.arange(size) + rank
        for dtype in (torch.int32, torch.float16, torch.bfloat16, torch.float64, torch.uint8):
            given = tensor.to(dtype)
            require(hvd.allreduce(given, op=hvd.Max)[0] == size - 1, "allreduce")
            require(hvd.allgather(given).shape[0] == size * size, "allgather")
            require(hvd.broadcast(given, size - 1)[0] == size - 1, "broadcast")
            require(bool((hvd.alltoall(given) == given).all()), "alltoall")
            own = hvd.reducescatter(given, op=hvd.Sum)
            require(own.item() == size * rank + self.total, "reducescatter")
        hvd.barrier()

    def groups(self) -> None:
        """Several tensors of several dtypes as one operation."""
        kinds = (torch.float32, torch.int64, torch.bfloat16)
        tensors = [torch.ones(self.common.choice((3, 2000)), dtype=dtype) for dtype in kinds]
        for each in hvd.grouped_allreduce(tensors, op=hvd.Sum):
            require(each[-1] == hvd.size(), "grouped_allreduce")
        for each in hvd.grouped_allgather(tensors, name="group"):
            require(each.sum() == each.numel(), "grouped_allgather")
        for each in hvd.grouped_reducescatter(tensors, op=hvd.Average):
            require(each.sum() == each.numel(), "grouped_reducescatter")

    def large(self) -> None:
        """Vectors of many frames."""
        tensor = torch.full((MIB,), float(hvd.rank()))
        handle = hvd.allreduce_async(tensor, op=hvd.Sum)
        rows = torch.full((1 + hvd.rank(), 65536), hvd.rank(), dtype=torch.int8)
        gathered = hvd.allgather(rows, name="large")
        require(int(gathered[-1, -1]) == hvd.size() - 1, "a large allgather")
        exchanged = hvd.alltoall(tensor)
        require(int(exchanged[-1]) == hvd.size() - 1, "a large alltoall")
        require(hvd.synchronize(handle)[-1].item() == self.total, "a large allreduce")

    def process_sets(self) -> None:
        """One comes and goes, the others stay, all are in use."""
        mine = self.even if hvd.rank() % 2 == 0 else self.odd
        handle = hvd.allreduce_async(torch.ones(3000), op=hvd.Sum, process_set=mine)
        ranks = sorted(
            self.common.sample(range(hvd.size()), self.common.randint(1, hvd.size() - 1))
        )
        if ranks in (self.even.ranks, self.odd.ranks):
            ranks = [0]
        added = hvd.add_process_set(ranks)
        if added.included():
            for count in (1, 5000):
                name = f"in a set {count}"
                got = hvd.allreduce(torch.ones(count), name=name, op=hvd.Sum, process_set=added)
                require(got[-1] == len(ranks), name)
            got = hvd.broadcast(torch.ones(5) * hvd.rank(), ranks[-1], process_set=added)
            require(got[-1] == ranks[-1], "a broadcast in a set")
        require(hvd.remove_process_set(added), "remove_process_set")
        require(hvd.synchronize(handle)[-1] == mine.size(), "an allreduce in a set")

    def joining(self) -> None:
        """Each rank has another number of steps."""
        steps = [self.common.randint(0, 4) for _ in range(hvd.size())]
        for step in range(steps[hvd.rank()]):
            active = sum(step < each for each in steps)
            for count in (2, 5000):
                got = hvd.allreduce(torch.ones(count), name=f"step.{count}", op=hvd.Sum)
                require(got[-1] == active, "an allreduce beside ranks that have joined")
        last = hvd.join(divide_by_initial_world_size=self.common.random() < 0.5)
        require(steps[last] == max(steps), "join")

    def rows(self) -> None:
        """What sparse gradients send: rows whose number changes each time, also none."""
        for name in ("indices", "values"):
            num_rows = self.own.choice((0, 1, 7, 300))
            handles = [
                hvd.allgather_async(torch.ones(num_rows, 8), name=f"{name}.{i}") for i in range(3)
            ]
            counts = hvd.allgather(torch.tensor([num_rows]))
            for handle in handles:
                require(hvd.synchronize(handle).shape[0] == int(counts.sum()), name)
        splits = [self.own.randint(0, 3) for _ in range(hvd.size())]
        _, received = hvd.alltoall(torch.ones(sum(splits), 2), splits)
        sent = hvd.alltoall(torch.tensor(splits, dtype=torch.int32))
        require(bool((received == sent).all()), "alltoall")

    def disagreements(self) -> None:
        """They are told to all, and the job goes on."""
        odd = hvd.rank() % 2
        for name in ("disagreed", f"disagreed.{self.num_scenes}"):
            fails(lambda name=name: hvd.allreduce(torch.ones(3 + odd), name=name))
            fails(lambda: hvd.allgather(torch.ones(2, 3 + odd)))
            fails(lambda: hvd.broadcast(torch.ones(3), odd))
            require(hvd.allreduce(torch.ones(3), name=name)[0] == 1, name)

    def duplicates(self) -> None:
        """A name in flight is refused, and the first operation goes on."""
        tensor = torch.ones(4)
        if hvd.rank() != 0:
            hvd.barrier()
        handle = hvd.allreduce_async(tensor, name="twice", op=hvd.Sum)
        if hvd.rank() == 0:
            fails(lambda: hvd.allreduce_async(tensor, name="twice", op=hvd.Sum), ValueError)
            hvd.barrier()
        require(hvd.synchronize(handle)[0] == hvd.size(), "a name that was refused")

    def fresh_names(self) -> None:
        """More than a cache holds, over the hours."""
        handles = [
            hvd.allreduce_async(torch.ones(3), name=f"fresh.{self.num_scenes}.{i}")
            for i in range(40)
        ]
        for handle in handles:
            require(hvd.synchronize(handle)[0] == 1, "a fresh name")

    def objects(self) -> None:
        """Pickled, in two operations each."""
        given = {"scene": self.num_scenes, "data": [0] * self.common.randint(0, 500)}
        require(hvd.broadcast_object(given, root_rank=0) == given, "broadcast_object")
        require(hvd.allgather_object(hvd.rank()) == list(range(hvd.size())), "allgather_object")

    def special_reductions(self) -> None:
        """Weights, Adasum and factors."""
        for count in (4, 3000):
            tensor = torch.full((count,), float(hvd.rank()))
            weight = 1.0 if hvd.rank() == 1 else 0.0
            require(hvd.allreduce(tensor, weight=weight)[-1] == 1, "a weighted average")
            ones = torch.ones(count)
            got = hvd.allreduce(ones, op=hvd.Adasum, name=f"adasum.{count}")
            require(abs(got[-1].item() - 1) < 1e-4, "Adasum")
            got = hvd.allreduce(ones, op=hvd.Product, prescale_factor=2.0)
            require(got[-1] == 2.0 ** hvd.size(), "a product")

    def scenes(self) -> Iterator[Callable[[], None]]:
        """Random scenes without end, the same on all ranks."""
        kinds = (
            self.gradients,
            self.gradients,
            self.unnamed,
            self.groups,
            self.large,
            self.process_sets,
            self.joining,
            self.rows,
            self.disagreements,
            self.duplicates,
            self.fresh_names,
            self.objects,
            self.special_reductions,
        )
        while True:
            self.num_scenes += 1
            yield self.common.choice(kinds)


def probe() -> list[float]:
    """Seconds that each of some awaited allreduces of 4 bytes took."""
    tensor = torch.zeros(1)
    times = []
    for _ in range(PROBES):
        began_s = time.perf_counter()
        hvd.allreduce_(tensor, name="probe", op=hvd.Sum)
        times.append(time.perf_counter() - began_s)
    return times


def return_freed_memory() -> None:
    """Lets malloc keep nothing of large blocks, so that resident is what somebody holds."""
    libc = ctypes.CDLL(None)
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        libc.mallopt(option, 128 << 10)


def take_sample(at_s: float, latencies: list[float]) -> Sample:
    """Asks all ranks what they use; nothing is in flight."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
    own = [resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), tensors]
    everyones = hvd.allgather(torch.tensor([own]), name="sample").T.tolist()
    microseconds = [1e6 * seconds for seconds in latencies]
    p99 = quantiles(microseconds, n=100)[98] if len(microseconds) > 1 else microseconds[0]
    operations = context.global_group().engine.statistics()["submitted"]
    return Sample(at_s, *everyones, median(microseconds), p99, operations)


def run_rank(seconds: float, seed: int) -> list[Sample]:
    """What each rank does; rank 0 prints, and decides when to sample and to end."""
    torch.set_num_threads(1)
    return_freed_memory()
    hvd.init()
    traffic = Traffic(
        random.Random(seed),
        random.Random(seed + 1 + hvd.rank()),
        hvd.add_process_set(range(0, hvd.size(), 2)),
        hvd.add_process_set(range(1, hvd.size(), 2)),
    )
    began_s = time.monotonic()
    sample_every_s = max(0.5, min(PRINT_EVERY_S, seconds / 100))
    samples: list[Sample] = []
    latencies: list[float] = []
    printed_s = 0.0
    for scene in traffic.scenes():
        scene()
        latencies += probe()
        passed_s = time.monotonic() - began_s
        due = passed_s >= sample_every_s * (len(samples) + 1)
        word = torch.tensor([int(due) + 2 * int(passed_s >= seconds)])
        decision = int(hvd.broadcast_(word, 0, name="decision"))
        if decision & 1:
            samples.append(take_sample(passed_s, latencies))
            latencies = []
            if hvd.rank() == 0 and passed_s - printed_s >= PRINT_EVERY_S:
                printed_s = passed_s
                print(samples[-1], flush=True)
        if decision & 2:
            break
    hvd.shutdown()
    return samples


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--np", type=int, default=4, help="ranks, at least 2 (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the scenes")
    parser.add_argument("--json", type=Path, help="where to write samples and verdict")
    args = parser.parse_args()
    if args.np < 2 or args.minutes <= 0:
        parser.error("--np is at least 2 and --minutes more than 0")
    return args


def main() -> int:
    args = parse_args()
    results: list[Any] = horovod.run(run_rank, (60 * args.minutes, args.seed), num_proc=args.np)
    samples = results[0]
    verdict = judge(samples)
    if args.json is not None:
        text = {"samples": [asdict(each) for each in samples], "verdict": asdict(verdict)}
        args.json.write_text(json.dumps(text))
    print(verdict, flush=True)
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
