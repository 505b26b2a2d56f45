"""A small data set, and one thread for PyTorch: several ranks share the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from landscapes.data import Pairs, open_pairs
from landscapes.data.rendering import Plan, render_data_set

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder of 40 pairs of 32 px."""
    folder = tmp_path_factory.mktemp("pairs") / "data"
    render_data_set(Plan(folder, 40, 32, 3), 1, lambda _: None)
    return folder


@pytest.fixture(scope="session")
def pairs(data: Path) -> Pairs:
    return open_pairs(data, "train")
