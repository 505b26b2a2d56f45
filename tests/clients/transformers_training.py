"""Trains with the Trainer of transformers; started by torchrun. Arguments: the backend, a file."""

from __future__ import annotations

import sys

import torch
from training import Mapped, make_model, note_weights
from transformers import Trainer, TrainingArguments

import horovod.torch.distributed


class WithLoss(torch.nn.Module):
    """A model in the form that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.inner(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


def main(backend: str, file: str) -> None:
    torch.distributed.init_process_group(backend)  # accelerate would refuse all but gloo and MPI
    arguments = TrainingArguments(
        output_dir=f"{file}.out",
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=8,
        learning_rate=0.05,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    model = WithLoss()
    trainer = Trainer(model=model, args=arguments, train_dataset=Mapped())
    trainer.train()
    assert torch.distributed.get_backend() == backend
    if trainer.is_world_process_zero():
        note_weights(file, model)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    assert horovod.torch.distributed.BACKEND == "horovod"
    main(*sys.argv[1:3])
