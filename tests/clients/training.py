"""The model and data that all clients train."""

from __future__ import annotations

import torch


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def dataset() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(96, 6, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :2] * 0.5)


class Mapped(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same data by name."""

    def __init__(self) -> None:
        self._data = dataset()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs, labels = self._data[index]
        return {"inputs": inputs, "labels": labels}


def note_weights(file: str, model: torch.nn.Module) -> None:
    """Write the weights for the test."""
    torch.save([weight.detach().clone() for weight in model.parameters()], file)
