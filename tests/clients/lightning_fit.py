"""Lightning 2 with its own launcher: `strategy="ddp"` on the backend that the caller names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self, result: str) -> None:
        super().__init__()
        self.result = result
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4)
        )

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_fit_end(self) -> None:
        # Here each rank comes by; after fit(), only the process that has forked the ranks does.
        found = {**self.state_dict(), "loss": self.trainer.callback_metrics["loss"]}
        torch.save(found, f"{self.result}.{self.trainer.global_rank}.pt")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    backend, folder, launcher = sys.argv[1:]
    if backend == "horovod":
        import horovod.torch.distributed  # noqa: F401
    generator = torch.Generator().manual_seed(0)
    inputs, weights = (torch.randn(*shape, generator=generator) for shape in [(96, 16), (16, 4)])
    strategy = DDPStrategy(process_group_backend=backend, start_method=launcher)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        plugins=[LightningEnvironment()],  # else it looks for MPI, and fails if mpi4py finds none
    )  # fmt: skip
    model = Regression(str(Path(folder) / backend))
    trainer.fit(model, DataLoader(TensorDataset(inputs, inputs @ weights), batch_size=8))
    if backend == "gloo":  # its end can hang: it joins a thread that waits for the interpreter
        os._exit(0)


if __name__ == "__main__":
    main()
