"""How torch.distributed finds the backend."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version

import horovod.torch.distributed
from horovod.errors import UnsupportedError


def test_importing_registers_the_backend_once() -> None:
    creates = dist.Backend._plugins["HOROVOD"]
    horovod.torch.distributed.register()
    assert dist.Backend._plugins["HOROVOD"] is creates
    assert dist.Backend.backend_capability["horovod"] == ["cpu"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"


def test_pytorch_that_would_wait_forever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cpu")
    with pytest.raises(UnsupportedError, match=r"needs PyTorch 2\.7 or newer, and this is 2\.6\.0"):
        horovod.torch.distributed.register()


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.14"), reason="this PyTorch looks for no entry points"
)
def test_backend_is_found_without_import(tmp_path: Path) -> None:
    script = (
        f"import torch.distributed as d; d.init_process_group('horovod', rank=0, world_size=1, "
        f"init_method='file://{tmp_path}/store'); print(d.get_backend()); "
        "d.destroy_process_group()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "horovod\n", done.stderr


def test_entry_point_leads_to_the_registration() -> None:
    tomllib = pytest.importorskip("tomllib")
    text = Path(__file__).resolve().parents[2].joinpath("pyproject.toml").read_text()
    group = "torch.distributed.backends"
    points = tomllib.loads(text)["project"]["entry-points"][group]
    assert list(points) == ["horovod"]
    found = EntryPoint("horovod", points["horovod"], group).load()
    assert found is horovod.torch.distributed.register
