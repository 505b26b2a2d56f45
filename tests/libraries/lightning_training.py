"""Trains with Lightning 1.9 on Horovod, and prints what each rank has seen as one line of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytorch_lightning as pl
import torch
from digits import accuracy, datasets, fingerprint, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import horovod.torch as hvd

EPOCHS = 4


class Digits(pl.LightningModule):
    """A network that Lightning trains."""

    def __init__(self, seed: int, wrapped: bool) -> None:
        super().__init__()
        self.network = network(seed)
        self.wrapped = wrapped

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        correct = (self.network(images).argmax(dim=1) == labels).double().mean()
        # sync_dist=True would do nothing: Lightning 1.9 looks for torch.distributed there.
        self.log("accuracy", self.trainer.strategy.reduce(correct))

    def configure_optimizers(self) -> Any:
        # Lightning multiplies the rate with the number of ranks.
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return hvd.DistributedOptimizer(optimizer) if self.wrapped else optimizer


def train(accumulate: int, wrapped: bool = False) -> dict[str, Any]:
    """Trains one model, and says how."""
    train_set, test_set = datasets()
    # Other weights on each rank, except for the first model: Lightning calls hvd.init().
    model = Digits(hvd.rank() if hvd.is_initialized() else 0, wrapped)
    trainer = pl.Trainer(
        strategy="horovod",
        accelerator="cpu",
        max_epochs=EPOCHS,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    test_loader = DataLoader(test_set, batch_size=64)
    trainer.fit(model, DataLoader(train_set, batch_size=32, shuffle=True), test_loader)
    (optimizer,) = trainer.optimizers
    gathered = trainer.strategy.all_gather(torch.tensor([float(trainer.global_rank)]))
    return {
        "strategy": type(trainer.strategy).__name__,
        "rank": trainer.global_rank,
        "size": trainer.world_size,
        "steps": trainer.global_step,
        "optimizer": str(type(optimizer)),
        "inside": str(type(getattr(optimizer, "_wrapped", None))),
        "passes": getattr(optimizer, "backward_passes_per_step", 0),
        "after": fingerprint(model.network),
        "accuracy": accuracy(model.network),
        "metric": float(trainer.callback_metrics["accuracy"]),
        "gathered": gathered.tolist(),
        "broadcast": trainer.strategy.broadcast(f"rank {trainer.global_rank}", src=1),
    }


if __name__ == "__main__":
    print(json.dumps([train(1), train(2), train(1, wrapped=True)]), flush=True)
