"""transformers' Trainer on a small model, with the backend that the caller names.

Trainer uses the process group that is there; its `ddp_backend` takes no names but its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of 12 token numbers; the label is whether the first is even."""

    def __init__(self) -> None:
        tokens = torch.randint(0, 64, (64, 12), generator=torch.Generator().manual_seed(0))
        self.rows = [{"input_ids": row, "labels": 1 - row[0] % 2} for row in tokens]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]


def main() -> None:
    backend, folder = sys.argv[1:]
    if backend == "horovod":
        import horovod.torch.distributed  # noqa: F401
    dist.init_process_group(backend)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(Path(folder) / f"{backend}.out"), use_cpu=True, max_steps=6, seed=1,
        per_device_train_batch_size=8, save_steps=6, logging_steps=3, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    data = Sentences()
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, train_dataset=data, eval_dataset=data
    )
    trainer.train()
    loss = torch.tensor(trainer.evaluate()["eval_loss"])
    assert trainer.args.world_size == dist.get_world_size() > 1
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    torch.save({**weights, "loss": loss}, Path(folder) / f"{backend}.{dist.get_rank()}.pt")
    if backend == "gloo":  # its end can hang: it joins a thread that waits for the interpreter
        os._exit(0)
    dist.destroy_process_group()


main()
