"""Trains with accelerate; started by torchrun. Arguments: the backend and a file."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from training import dataset, make_model, note_weights

import horovod.torch.distributed


def main(backend: str, file: str) -> None:
    set_seed(0)
    torch.distributed.init_process_group(backend)  # accelerate would refuse all but gloo and MPI
    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(dataset(), batch_size=8)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
    gathered = accelerator.gather(torch.tensor([accelerator.process_index]))
    assert gathered.tolist() == [0, 1]
    if accelerator.is_main_process:
        note_weights(file, accelerator.unwrap_model(model))
    accelerator.end_training()


if __name__ == "__main__":
    assert horovod.torch.distributed.BACKEND == "horovod"
    main(*sys.argv[1:3])
