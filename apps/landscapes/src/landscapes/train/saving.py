"""Checkpoints of a run: everything that training needs, and the model that others load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from landscapes.checkpoint import part_of, read_tensors, save_model, write_tensors
from landscapes.errors import LandscapesError
from landscapes.nets import encode_labels
from landscapes.nets.encoder import draw_styles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from landscapes.nets.segmenter import Segmenter
    from landscapes.train.batches import Stream
    from landscapes.train.networks import Networks, Painter
    from landscapes.train.step import Trainer

TRAINING = "training.safetensors"
# What runs had before there were these options.
EARLIER = {"by_hand": 0.0, "vgg_weights": None}
BATCHES = 8  # of which statistics are estimated


@torch.no_grad()
def estimate_statistics(average: Painter, stream: Stream, batch: int) -> None:
    """Give an averaged generator the statistics of its own features, over batches of all ranks.

    Those of the training network do not fit: they are of other weights. All ranks must call it.
    """
    layers = [
        each
        for each in average.generator.modules()
        if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)
    ]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # averages over all batches
    average.generator.train()
    parameter = next(average.parameters())
    for number in range(BATCHES):
        position = (number * hvd.size() + hvd.rank()) * batch
        drawn = stream.batch(position, batch).to(parameter.device, parameter.dtype)
        mean, log_variance = average.encoder(drawn.pictures)
        styles = draw_styles(mean, log_variance, drawn.noise)
        average.generator(encode_labels(drawn.wanted, parameter.dtype), styles)
    average.generator.eval()


def save_training(
    file: Path, trainer: Trainer, guide: Segmenter | None, progress: dict[str, Any]
) -> None:
    """Write everything that a run needs to go on bit for bit; ``progress`` is JSON."""
    tensors = {f"networks.{key}": each for key, each in trainer.networks.state_dict().items()}
    for name, optimizer in (("painting", trainer.painting), ("judging", trainer.judging)):
        tensors |= {f"{name}.{key}": each for key, each in _tensors_of(optimizer).items()}
    if guide is not None:
        tensors |= {f"guide.{key}": each for key, each in guide.state_dict().items()}
    write_tensors(file, tensors, {"progress": progress})


def load_training(
    file: Path, trainer: Trainer, guide: Segmenter | None, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Read what ``save_training`` wrote and return its progress.

    Raise LandscapesError if the run was one of other settings or data than ``fixed``.
    """
    tensors, metadata = read_tensors(file)
    progress: dict[str, Any] = metadata["progress"]
    stored = {**EARLIER, **progress["fixed"]}
    for key, value in fixed.items():
        if stored.get(key) != value:
            raise LandscapesError(
                f"{file} is of a run with {key.replace('_', '-')} {stored.get(key)!r}, and this "
                f"one has {value!r}: give the same, or another --out."
            )
    trainer.networks.load_state_dict(part_of(tensors, "networks"))
    _load_tensors(trainer.painting, part_of(tensors, "painting"))
    _load_tensors(trainer.judging, part_of(tensors, "judging"))
    if guide is not None:
        guide.load_state_dict(part_of(tensors, "guide"))
    return progress


def save_average(
    folder: Path, networks: Networks, guide: Segmenter | None, config: dict[str, Any]
) -> None:
    """Write the model that paints: the averages, and the guide as the segmenter of photos."""
    parts: dict[str, torch.nn.Module] = {
        "generator": networks.average.generator,
        "encoder": networks.average.encoder,
    }
    if guide is not None:
        parts["segmenter"] = guide
    width = None if guide is None else guide.width
    save_model(folder, parts, {"preset": networks.preset.name, "segmenter": width, **config})


def _tensors_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{key}": tensor
        for number, state in optimizer.state_dict()["state"].items()
        for key, tensor in state.items()
    }


def _load_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    complete = optimizer.state_dict()
    complete["state"] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        complete["state"].setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict(complete)
