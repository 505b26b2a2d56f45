"""What fewer bytes cost in accuracy: final losses with and without, over several seeds.

    python benchmarks/accuracy.py
    python benchmarks/accuracy.py --tasks text --ways none int8 --seeds 3

Ranks that are threads, each as on a host of its own, train three networks: one of three layers on
the digits of scikit-learn, a transformer on characters of the reference that Python brings along
for its help(), and a residual network of 18 layers on images of gratings. All ways take the same
number of steps, with the same samples, first weights and learning rates. The tables have medians
over the seeds, with the lowest and highest, and the median of the ratios to `none` of a seed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pydoc_data import topics
from typing import TYPE_CHECKING, Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import horovod.torch as hvd
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("none", "int8", "fp8", "powersgd(2)", "LocalSGD, every 8", "DiLoCo, every 32")
CONTEXT = 32
CHARACTERS = 96
WIDTH = 64
SIDE = 12
CLASSES = 10


@dataclass(frozen=True)
class Task:
    """Something to learn.

    Attributes:
        model: makes the network.
        optimizer: over its parameters.
        samples: draws inputs and labels: a number of them, of the training or test set.
        loss: of outputs and labels, a mean.
        batch: samples of a rank in a step.
        steps: of each rank.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    samples: Callable[[torch.Generator, int, bool], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    batch: int
    steps: int


class Block(nn.Module):
    """A layer of a transformer that looks back."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return (batch, time, width)."""
        parts = self.mixed(self.norms[0](x)).unflatten(-1, (3, 4, WIDTH // 4))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        narrow: torch.Tensor = self.narrow(functional.gelu(self.wide(self.norms[1](x))))
        return x + narrow


class Language(nn.Module):
    """Predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Take (batch, time), return (batch, time, characters)."""
        x = self.characters(text) + self.places.weight
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Residual(nn.Module):
    """Two convolutions and a way around them; groups are normalized, so that ranks are alike."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(4, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(4, after),
        )  # fmt: skip
        around = nn.Conv2d(before, after, 1, stride, bias=False)
        self.around: nn.Module = nn.Identity() if before == after else around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return (batch, channels, rows, columns)."""
        return functional.relu(self.convolutions(x) + self.around(x))


def residual_network() -> nn.Module:
    """Return the layers of ResNet-18, with a sixteenth of its channels."""
    widths = (4, 4, 8, 16, 32)
    stages = [
        block
        for before, after in pairwise(widths)
        for block in (
            Residual(before, after, 1 if before == after else 2),
            Residual(after, after, 1),
        )
    ]
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 1, 1, bias=False), nn.GroupNorm(4, 4), nn.ReLU(), *stages,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def digits_network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


@cache
def reference_text() -> torch.Tensor:
    """Return the help texts of Python as numbers of characters."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.tensor([min(max(ord(c) - 31, 0), CHARACTERS - 1) for c in text])


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    inputs = torch.tensor(found.data, dtype=torch.float32) / 16
    return inputs[order], torch.tensor(found.target)[order]


def draw_text(
    generator: torch.Generator, count: int, test: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw pieces of the text: from its last tenth for tests, else from what is before."""
    text = reference_text()
    border = len(text) * 9 // 10
    first, end = (border, len(text)) if test else (0, border)
    starts = torch.randint(first, end - CONTEXT - 1, (count, 1), generator=generator)
    pieces = text[starts + torch.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def draw_digits(
    generator: torch.Generator, count: int, test: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw digits: from the first 360 for tests, else from the others."""
    inputs, labels = digits()
    first, end = (0, 360) if test else (360, len(labels))
    chosen = torch.randint(first, end, (count,), generator=generator)
    return inputs[chosen], labels[chosen]


def draw_images(
    generator: torch.Generator, count: int, _: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw gratings of any phase in much noise; the class is their direction."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    angle = (labels * math.pi / CLASSES).view(-1, 1, 1)
    phase = 2 * math.pi * torch.rand(count, 1, 1, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    waves = torch.sin(0.9 * (rows * angle.cos() + columns * angle.sin()) + phase)
    noise = torch.randn(count, SIDE, SIDE, generator=generator)
    return (waves + 0.5 * noise).unsqueeze(1), labels


def _cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def _faster_sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def _adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3)


TASKS = {
    "digits": Task(digits_network, _sgd, draw_digits, _cross_entropy, 16, 320),
    "text": Task(Language, _adam, draw_text, _cross_entropy, 8, 256),
    "images": Task(residual_network, _faster_sgd, draw_images, _cross_entropy, 8, 512),
}


def initialized(model: nn.Module, seed: int) -> nn.Module:
    """Give a network its first weights; ranks that are threads share the global generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() > 1:
                param.normal_(0, (param[0].numel() / 2) ** -0.5, generator=generator)
            elif name.endswith("bias"):
                param.zero_()
    return model


def wrap(way: str, plain: torch.optim.Optimizer, model: nn.Module) -> Any:
    """Return the optimizer of a way to train."""
    kind, _, every = way.partition(", every ")
    if every:
        wrapping: Any = getattr(hvd, kind)
        return wrapping(plain, every=int(every))
    if way.startswith("powersgd("):
        compression: Any = hvd.Compression.powersgd(int(way[9:-1]))
    else:
        compression = getattr(hvd.Compression, way)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression)


def train(task_name: str, way: str, seed: int) -> tuple[float, float]:
    """Train on this rank, and return the losses on training and test samples."""
    hvd.init()
    task = TASKS[task_name]
    model = initialized(task.model(), seed)
    optimizer = wrap(way, task.optimizer(model.parameters()), model)
    generator = torch.Generator().manual_seed(1000 * seed + hvd.rank() + 1)
    for _ in range(task.steps):
        inputs, labels = task.samples(generator, task.batch, False)
        optimizer.zero_grad()
        task.loss(model(inputs), labels).backward()
        optimizer.step()
    optimizer.synchronize()
    losses = []
    with torch.no_grad():
        for test in (False, True):
            chosen = task.samples(torch.Generator().manual_seed(10**9 + test), 512, test)
            losses.append(task.loss(model(chosen[0]), chosen[1]).item())
    return losses[0], losses[1]


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def report(task: str, ways: list[str], ranks: int, seeds: int) -> None:
    """Train in all ways, which take turns, and print a table."""
    began = time.monotonic()
    losses: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for seed in range(seeds):
        for way in ways:
            found = run_ranks(ranks, train, task, way, seed, hosts=[1] * ranks, timeout=600)
            losses[way].append(found[0])
    what = TASKS[task]
    took = time.monotonic() - began
    print(
        f"\n{task}: {ranks} ranks, {what.steps} steps of {what.batch} samples on each, {seeds} "
        f"seeds; {took:.0f} s\n\n| | training loss | test loss | test loss to that of {ways[0]} |\n"
        "|---|---:|---:|---:|"
    )
    for way in ways:
        trained, tested = ([pair[i] for pair in losses[way]] for i in (0, 1))
        ratios = [
            mine[1] / first[1] for mine, first in zip(losses[way], losses[ways[0]], strict=True)
        ]
        print(f"| {way} | {_cell(trained)} | {_cell(tested)} | {_cell(ratios)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="the first is compared with")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in args.tasks:
        report(task, args.ways, args.ranks, args.seeds)


if __name__ == "__main__":
    main()
