"""What local steps and 8 bits cost in accuracy: final losses with and without, over several seeds.

    python benchmarks/local_steps.py
    python benchmarks/local_steps.py --ranks 8 --seeds 10
    python benchmarks/local_steps.py --ways DistributedOptimizer int8 fp8 fp8_e5m2

Ranks train a small network on the digits of scikit-learn, with the same samples per step and the
same learning rates for each way. The table has medians over the seeds, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

import horovod.torch as hvd
from horovod.testing import run_ranks

WAYS = ("DistributedOptimizer", "LocalSGD, every 8", "LocalSGD, every 32", "DiLoCo, every 32")
QUANTIZED = ("int8", "fp8", "fp8_e5m2")
BATCH = 16


@dataclass(frozen=True)
class Result:
    """What a run has reached.

    Attributes:
        train_loss, test_loss: cross entropy over all samples.
        accuracy: on the test samples.
    """

    train_loss: float
    test_loss: float
    accuracy: float


def wrap(way: str, model: torch.nn.Module) -> Any:
    """Return the optimizer of a way to train."""
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if way == "DistributedOptimizer":
        return hvd.DistributedOptimizer(plain, model.named_parameters())
    if way in QUANTIZED:
        compression = getattr(hvd.Compression, way)
        return hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression)
    kind, every = way.split(", every ")
    if kind == "LocalSGD":
        return hvd.LocalSGD(plain, every=int(every))
    return hvd.DiLoCo(plain, every=int(every))


def network(generator: torch.Generator) -> torch.nn.Sequential:
    """Return a network of three layers; ranks that are threads share the global generator."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )  # fmt: skip
    with torch.no_grad():
        for param in model.parameters():
            bound = param.shape[-1] ** -0.5
            param.uniform_(-bound, bound, generator=generator)
    return model


def train(way: str, seed: int, steps: int) -> Result:
    """Train on this rank's share of the samples, drawn by the seed."""
    hvd.init()
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, rest = order[:360], order[360:]
    own = rest[hvd.rank() :: hvd.size()]
    model = network(torch.Generator().manual_seed(seed))
    optimizer = wrap(way, model)
    batches = torch.Generator().manual_seed(1000 * seed + hvd.rank())
    for _ in range(steps):
        chosen = own[torch.randint(len(own), (BATCH,), generator=batches)]
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
    optimizer.synchronize()
    with torch.no_grad():
        losses = [functional.cross_entropy(model(inputs[s]), labels[s]) for s in (rest, test)]
        right = (model(inputs[test]).argmax(1) == labels[test]).double().mean()
    return Result(*(loss.item() for loss in losses), right.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=320, help="of each rank")
    parser.add_argument("--ways", nargs="+", default=[*WAYS, *QUANTIZED])
    args = parser.parse_args()
    hosts = [1] * args.ranks  # values are quantized between hosts only
    torch.set_num_threads(1)
    print(f"{args.ranks} ranks, {args.steps} steps of {BATCH} samples each, {args.seeds} seeds")
    print("| | training loss | test loss | accuracy |\n|---|---:|---:|---:|")
    for way in args.ways:
        runs = [
            run_ranks(args.ranks, train, way, seed, args.steps, hosts=hosts)[0]
            for seed in range(args.seeds)
        ]
        cells = []
        for name, digits in (("train_loss", 4), ("test_loss", 3), ("accuracy", 3)):
            values = sorted(getattr(run, name) for run in runs)
            low, middle, high = values[0], statistics.median(values), values[-1]
            cells.append(f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        print(f"| {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
