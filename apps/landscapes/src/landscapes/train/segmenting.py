"""Trains segmenters, on one process or data-parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

import horovod.torch as hvd
from landscapes.nets.labels import LABELS
from landscapes.nets.segmenter import Segmenter
from landscapes.nets.start import initialize
from landscapes.pair import BIOMES, HOURS
from landscapes.train.batches import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from landscapes.data import Pairs
    from landscapes.pair import Meta

NONE = -100  # what cross entropy leaves out
RATE = 2e-3


@dataclass(frozen=True)
class Course:
    """How a segmenter is trained: ``width``, ``seed``, ``steps``, and ``batch`` over all ranks."""

    width: int
    seed: int
    steps: int
    batch: int = 16


def train_segmenter(pairs: Pairs, course: Course, device: torch.device | str = "cpu") -> Segmenter:
    """Return a segmenter trained on ``pairs`` by all ranks together, the same on all of them.

    Each rank takes its share of a batch, at least one picture. The segmenter is on ``device``.
    """
    segmenter = Segmenter(course.width)
    initialize(segmenter, 1.4, course.seed)
    segmenter.to(device)
    adam = torch.optim.Adam(segmenter.parameters(), RATE)
    named = segmenter.named_parameters(f"segmenter{course.seed}")
    optimizer = hvd.DistributedOptimizer(adam, named_parameters=named)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, RATE, course.steps)
    stream = Stream(pairs, course.seed, 1)
    hours, biomes = hours_of(pairs.metas), biomes_of(pairs.metas)
    share = max(1, course.batch // hvd.size())
    for step in range(course.steps):
        position = step * share * hvd.size() + hvd.rank() * share
        indices = [stream.index_at(position + each) for each in range(share)]
        batch = stream.batch(position, share).to(device, torch.float32)
        seen = segmenter(batch.pictures)
        labels = batch.labels.long()
        loss = F.cross_entropy(seen.classes, labels.where(labels < LABELS, NONE), ignore_index=NONE)
        for logits, known in ((seen.hour, hours), (seen.biome, biomes)):
            loss = loss + 0.2 * _over_known(logits, torch.from_numpy(known[indices]).to(device))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    # Running statistics are those of each rank's own pictures so far.
    hvd.broadcast_parameters(segmenter.state_dict(), 0)
    return segmenter.eval().requires_grad_(False)


def _over_known(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy over the targets that are known, 0 if none is."""
    total = F.cross_entropy(logits, targets, ignore_index=NONE, reduction="sum")
    return total / max(1, int((targets != NONE).sum()))


def hours_of(metas: Sequence[Meta]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return for each pair the index in ``HOURS`` of the nearest hour, -100 if unknown."""
    named = np.array(list(HOURS.values()))

    def nearest(hour: float) -> int:
        apart = np.abs(named - hour)
        return int(np.minimum(apart, 24 - apart).argmin())

    found = [NONE if each.hour is None else nearest(each.hour) for each in metas]
    return np.array(found, np.int64)


def biomes_of(metas: Sequence[Meta]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return for each pair the index in ``BIOMES`` of its biome, -100 if unknown."""
    found = [NONE if each.biome is None else BIOMES.index(each.biome) for each in metas]
    return np.array(found, np.int64)
