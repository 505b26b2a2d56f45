"""Trains with Lightning 2, which starts the second rank itself. Arguments: the backend, a file."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from training import dataset, make_model, note_weights

import horovod.torch.distributed


class Module(lightning.LightningModule):
    """A model in the form that Lightning expects."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.inner(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(backend: str, file: str) -> None:
    lightning.seed_everything(0)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),
        # Looking for MPI would fail where mpi4py is installed without an MPI library.
        plugins=[LightningEnvironment()],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(dataset(), batch_size=8))
    assert torch.distributed.get_backend() == backend
    if trainer.is_global_zero:
        note_weights(file, module)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    assert horovod.torch.distributed.BACKEND == "horovod"
    main(*sys.argv[1:3])
