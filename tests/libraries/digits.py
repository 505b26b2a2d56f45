"""What the scripts of this folder train on: 1797 images of digits, and a small network."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset, random_split

NUM_CLASSES = 10
NUM_TEST = 397


def datasets() -> tuple[Dataset[tuple[torch.Tensor, ...]], Dataset[tuple[torch.Tensor, ...]]]:
    """The digits to train on and those to test with, the same on all ranks."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    whole = TensorDataset(images, torch.tensor(digits.target))
    parts = [len(whole) - NUM_TEST, NUM_TEST]
    train, test = random_split(whole, parts, generator=torch.Generator().manual_seed(0))
    return train, test


def network(seed: int) -> torch.nn.Sequential:
    """Two layers; other weights with another seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, NUM_CLASSES)
    )


def fingerprint(model: torch.nn.Module) -> float:
    """Differs if any weight does."""
    weights = torch.cat([param.detach().double().flatten() for param in model.parameters()])
    return float((weights * torch.arange(1, len(weights) + 1)).sum())


def accuracy(model: torch.nn.Module) -> float:
    """Of the whole test set, on this rank alone."""
    _, test = datasets()
    images, labels = (torch.stack(column) for column in zip(*test, strict=True))
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).double().mean())
