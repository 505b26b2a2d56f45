"""Training on Ray: RayExecutor and HorovodTrainer beside Ray Train's TorchTrainer.

    python benchmarks/ray_steps.py --runs 5

Needs Ray with what Ray Train needs (pyarrow, pandas, fsspec). All train the MLP and the CNN of
``training_step.py`` on two ranks, one after the other, each time on a cluster that runs already.
What is measured: from ``RayExecutor(...).start()``, or the ``fit()`` of a trainer, to the end of
the first step of rank 0; then the mean time of a step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

SIZES = SimpleNamespace(mlp_width=512, batch=32, cnn_width=16, image=32)
WAYS = ("RayExecutor", "HorovodTrainer", "TorchTrainer")


def measure(prepare: Any, steps: int) -> dict[str, float]:
    """Trains both models; when the first step ended, and how long the others took."""
    import torch
    from training_step import step_of, workloads

    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for name, (plain, images) in workloads(SIZES).items():
        step = step_of(*prepare(plain), images)
        step()
        found.setdefault("first", time.time())
        for _ in range(5):
            step()
        began_s = time.perf_counter()
        for _ in range(steps):
            step()
        found[name] = (time.perf_counter() - began_s) / steps
    return found


def by_horovod(steps: int) -> dict[str, float]:
    """What a rank of RayExecutor does."""
    import torch

    import horovod.torch as hvd

    hvd.init()

    def prepare(model: Any) -> tuple[Any, Any]:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())

    return measure(prepare, steps)


def by_horovod_trainer(config: dict[str, int]) -> dict[str, float]:
    """What a worker of HorovodTrainer does."""
    return by_horovod(config["steps"])


def by_torch_trainer(config: dict[str, int]) -> dict[str, float]:
    """What a worker of TorchTrainer does."""
    import torch
    from ray.train.torch import prepare_model

    def prepare(model: Any) -> tuple[Any, Any]:
        prepared = prepare_model(model)
        return prepared, torch.optim.SGD(prepared.parameters(), lr=1e-3)

    return measure(prepare, config["steps"])


def run_once(way: str, steps: int) -> dict[str, float]:
    """Trains once; seconds to the first step, and of a step by model."""
    began_s = time.time()
    if way == "RayExecutor":
        from horovod.ray import RayExecutor

        with RayExecutor(num_workers=2) as executor:
            found = executor.run(by_horovod, args=[steps])[0]
    else:
        from ray.train import ScalingConfig
        from ray.train.torch import TorchTrainer

        from horovod.ray import HorovodTrainer

        trainer, train = {
            "HorovodTrainer": (HorovodTrainer, by_horovod_trainer),
            "TorchTrainer": (TorchTrainer, by_torch_trainer),
        }[way]
        fitted = trainer(
            train,
            train_loop_config={"steps": steps},
            scaling_config=ScalingConfig(num_workers=2),
        ).fit()
        found = fitted.return_value
    return {**found, "first": found["first"] - began_s}


def main() -> None:
    """Measures all ways in turn, and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    # Not before: the arguments make sense without Ray, too.
    import ray

    # A third CPU for the controller of Ray Train.
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(options.runs):
        for way in WAYS:
            found[way].append(run_once(way, options.steps))
            print(f"{way} {number + 1}: {found[way][-1]}", file=sys.stderr, flush=True)
    ray.shutdown()
    for way in WAYS:
        medians = {key: statistics.median(each[key] for each in found[way])
                   for key in ("first", "MLP", "CNN")}  # fmt: skip
        steps = ", ".join(f"{name} {medians[name] * 1000:.1f} ms" for name in ("MLP", "CNN"))
        print(f"{way}: {medians['first']:.1f} s to the first step; a step: {steps}")


if __name__ == "__main__":
    main()
