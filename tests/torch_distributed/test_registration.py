"""How torch.distributed finds the backend."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch.distributed as dist

import horovod.torch.distributed


def test_importing_registers_the_backend_once() -> None:
    creates = dist.Backend._plugins["HOROVOD"]
    horovod.torch.distributed.register()
    assert dist.Backend._plugins["HOROVOD"] is creates
    assert dist.Backend.backend_capability["horovod"] == ["cpu"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"


def test_entry_point_leads_to_the_registration() -> None:
    tomllib = pytest.importorskip("tomllib")
    text = Path(__file__).resolve().parents[2].joinpath("pyproject.toml").read_text()
    group = "torch.distributed.backends"
    points = tomllib.loads(text)["project"]["entry-points"][group]
    assert list(points) == ["horovod"]
    found = EntryPoint("horovod", points["horovod"], group).load()
    assert found is horovod.torch.distributed.register
