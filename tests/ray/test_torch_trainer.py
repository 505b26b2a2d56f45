"""Ray Train's own TorchTrainer with the backend of torch.distributed: equal to gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),  # of Ray about itself
]


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train a small model; return its weights and the backend."""
    import ray.train.torch
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    weights = [weight.tolist() for weight in model.parameters()]
    return {"weights": weights, "backend": dist.get_backend(), "size": dist.get_world_size()}


@pytest.fixture
def registered(cluster: Any) -> Iterator[None]:
    """Have all workers register the backend; Ray takes such a hook from ``ray.init`` alone.

    PyTorch before 2.14 does not find the backend by itself, and Ray makes the group before it calls
    the function of the user.
    """
    hook = {"worker_process_setup_hook": "horovod.torch.distributed.register"}
    ray.shutdown()
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=hook)
    yield
    ray.shutdown()
    ray.init(address=cluster.address, log_to_driver=False)


@pytest.mark.usefixtures("registered")
def test_weights_are_those_of_gloo(tmp_path: Path) -> None:
    found = {}
    for backend in ("gloo", "horovod"):
        trainer = TorchTrainer(
            train,
            torch_config=TorchConfig(backend=backend, timeout_s=240),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path)),
        )
        found[backend] = trainer.fit().return_value
    assert [found[backend]["backend"] for backend in found] == ["gloo", "horovod"]
    assert [each["size"] for each in found.values()] == [2, 2]
    assert found["gloo"]["weights"] == found["horovod"]["weights"]
