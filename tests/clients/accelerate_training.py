"""What `accelerate launch --cpu` runs: a regression, with the backend that the caller names.

Accelerate chooses gloo for CPUs, unless the process group is there already.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import get_cpu_distributed_information
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    backend, folder = sys.argv[1:]
    if backend == "horovod":
        import horovod.torch.distributed  # noqa: F401
    place = get_cpu_distributed_information()  # what mpirun or torchrun has set
    dist.init_process_group(backend, rank=place.rank, world_size=place.world_size)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    inputs = torch.randn(96, 16)
    data = TensorDataset(inputs, inputs @ torch.randn(16, 4))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(data, batch_size=8)
    )
    for _ in range(2):
        for batch, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(batch), targets))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    seen = accelerator.gather(torch.tensor([accelerator.process_index]))
    names = accelerator.gather_for_metrics([f"rank {accelerator.process_index}"], True)
    assert seen.tolist() == list(range(accelerator.num_processes)), seen
    assert len(names) == accelerator.num_processes, names
    weights = accelerator.unwrap_model(model).state_dict()
    torch.save(weights, Path(folder) / f"{backend}.{accelerator.process_index}.pt")
    if backend == "gloo":  # its end can hang: it joins a thread that waits for the interpreter
        os._exit(0)
    dist.destroy_process_group()


main()
