"""Trains with PyTorch-Ignite on Horovod, and prints what each rank has seen as one line of JSON.

Under horovodrun it is one rank; with the argument `spawn` it starts two by itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ignite.distributed as idist
import torch
from digits import accuracy, datasets, fingerprint, network
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch.nn.functional import cross_entropy

EPOCHS = 4


def collectives() -> dict[str, Any]:
    """What Ignite's own functions give."""
    rank = idist.get_rank()
    own = torch.tensor([float(rank), 1.0])
    group = idist.new_group([1])
    result = {
        "sum": idist.all_reduce(own.clone()).tolist(),
        "average": idist.all_reduce(own.clone(), "AVERAGE").tolist(),
        "max": idist.all_reduce(own.clone(), "MAX").tolist(),
        "number": idist.all_reduce(rank + 1),
        "gathered": idist.all_gather(own).tolist(),
        "in a group": idist.all_gather(own, group=group).tolist(),
        "objects": idist.all_gather(f"rank {rank}"),
        "broadcast": idist.broadcast(own.clone(), src=1).tolist(),
    }
    idist.barrier()
    return result


def train(model: torch.nn.Module) -> tuple[Engine, Any]:
    """Trains the model, which Ignite wraps, and measures it after each epoch."""
    train_set, test_set = datasets()
    train_loader = idist.auto_dataloader(train_set, batch_size=32, shuffle=True)
    test_loader = idist.auto_dataloader(test_set, batch_size=64)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9))
    trainer = create_supervised_trainer(model, optimizer, cross_entropy)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    metrics = {"accuracy": Accuracy(), "loss": Loss(cross_entropy)}
    evaluator = create_supervised_evaluator(model, metrics=metrics)

    @trainer.on(Events.EPOCH_COMPLETED)
    def measure(_: Engine) -> None:
        evaluator.run(test_loader)

    trainer.run(train_loader, max_epochs=EPOCHS)
    return evaluator, optimizer


def training(_: int) -> None:
    """What each rank does."""
    # Other weights on each rank: the model of rank 0 is to count.
    model = idist.auto_model(network(seed=idist.get_rank()))
    before = fingerprint(model)
    evaluator, optimizer = train(model)
    facts = {
        "rank": idist.get_rank(),
        "size": idist.get_world_size(),
        "backend": idist.backend(),
        "model": idist.model_name(),
        "optimizer": str(type(optimizer)),
        "before": before,
        "after": fingerprint(model),
        "metrics": evaluator.state.metrics,
        "accuracy": accuracy(model),
        "collectives": collectives(),
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    options = {"nproc_per_node": 2} if "spawn" in sys.argv else {}
    with idist.Parallel(backend="horovod", **options) as parallel:
        parallel.run(training)
