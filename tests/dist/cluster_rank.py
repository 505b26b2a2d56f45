"""A rank of a job between hosts that must end well: run by test_cluster.py on every rank.

Arguments: the name of a function below, and what it takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import horovod.torch as hvd
from horovod._settings.config import Config

ROOT = Path(__file__).resolve().parents[2]
COUNTS = (1, 1000, 300_007)
DIGITS_STEPS = 12
DIGITS_ROWS = 32  # of each rank in each step


def values_of(rank: int, count: int) -> np.ndarray:
    """Whole numbers, so that their sums are exact in any order."""
    return np.random.default_rng(1000 * rank + count).integers(-99, 100, count).astype(np.float32)


def collectives() -> None:
    """Every collective on every rank, compared with NumPy."""
    hvd.init()
    for count in COUNTS:
        check_reductions(count)
        check_movements(count)
    everyones = [[values_of(rank, 10 + i) for i in range(20)] for rank in range(hvd.size())]
    handles = [
        hvd.allreduce_async(torch.from_numpy(mine), name=f"many.{index}", op=hvd.Sum)
        for index, mine in enumerate(everyones[hvd.rank()])
    ]
    for handle, *inputs in zip(handles, *everyones, strict=True):
        same(hvd.synchronize(handle), np.sum(inputs, axis=0))
    hvd.shutdown()
    print("all equal", flush=True)


def check_reductions(count: int) -> None:
    """Allreduce and reducescatter."""
    everyones = np.stack([values_of(rank, count) for rank in range(hvd.size())])
    mine = torch.from_numpy(everyones[hvd.rank()])
    same(hvd.allreduce(mine, op=hvd.Sum), everyones.sum(axis=0))
    same(hvd.allreduce(mine, op=hvd.Max), everyones.max(axis=0))
    mean = hvd.allreduce(mine, op=hvd.Average).numpy()
    np.testing.assert_allclose(mean, everyones.mean(axis=0), rtol=1e-6, atol=1e-5)
    rows = np.tile(everyones, (1, hvd.size()))
    parts = np.array_split(rows.sum(axis=0), hvd.size())
    got = hvd.reducescatter(torch.from_numpy(rows[hvd.rank()]), op=hvd.Sum)
    same(got, parts[hvd.rank()])


def check_movements(count: int) -> None:
    """Broadcast, allgather and alltoall; the numbers of rows differ."""
    size, rank = hvd.size(), hvd.rank()
    root = count % size
    same(hvd.broadcast(torch.from_numpy(values_of(rank, count)), root), values_of(root, count))
    gathered = [values_of(other, count + other) for other in range(size)]
    same(hvd.allgather(torch.from_numpy(gathered[rank])), np.concatenate(gathered))
    # Rank r sends count + r + s elements to rank s.
    sent = [[values_of(r + size * s, count + r + s) for s in range(size)] for r in range(size)]
    splits = [len(part) for part in sent[rank]]
    got, _ = hvd.alltoall(torch.from_numpy(np.concatenate(sent[rank])), splits)
    same(got, np.concatenate([row[rank] for row in sent]))


def same(got: torch.Tensor, expected: np.ndarray) -> None:
    """Compares every element."""
    np.testing.assert_array_equal(got.numpy(), expected)


def make_digits() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The network of the example, without dropout, and its data, in double precision."""
    sys.path.insert(0, str(ROOT / "examples" / "pytorch"))
    import digits

    torch.manual_seed(1)
    model = digits.Network().double().eval()
    images, labels = digits.load_data(seed=1)[0].tensors
    return model, images.double(), labels


def train_digits(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: int, num_shares: int
) -> list[torch.Tensor]:
    """Trains on shares [rank, rank + num_shares) of ``size``; returns the parameters."""
    _, images, labels = make_digits()
    for step in range(DIGITS_STEPS):
        begin = (step * size + rank) * DIGITS_ROWS
        rows = slice(begin, begin + num_shares * DIGITS_ROWS)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def digits(folder: str) -> None:
    """Trains the digits model on this rank's share; saves the parameters."""
    hvd.init()
    model = make_digits()[0]
    if hvd.rank() > 0:  # what it starts with comes from rank 0
        for param in model.parameters():
            param.data.zero_()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    trained = train_digits(model, optimizer, hvd.rank(), hvd.size(), num_shares=1)
    torch.save(trained, f"{folder}/digits.{hvd.rank()}.pt")
    hvd.shutdown()


def training(folder: str) -> None:
    """Trains the digits model, and then by all recipes of torch_training, in a second engine."""
    digits(folder)
    sys.path.insert(0, str(ROOT / "tests" / "fakes"))
    import torch_training

    trained = torch_training.train_many(list(torch_training.RECIPES))
    torch.save(trained, f"{folder}/recipes.{Config.from_env().rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {each.__name__: each for each in (collectives, training)}[sys.argv[1]](*sys.argv[2:])
