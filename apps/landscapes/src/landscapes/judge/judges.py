"""The networks that judge: trained on pairs that no painter and no guide has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from landscapes.checkpoint import read_tensors, write_tensors
from landscapes.data import open_pairs
from landscapes.nets.segmenter import Segmenter
from landscapes.train.batches import to_pictures
from landscapes.train.segmenting import Course, train_segmenter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Other widths and seeds than the guide's.
LABELS_WIDTH, FEATURES_WIDTH = 16, 10
SEEDS = (7001, 7002)
BATCH = 32


@dataclass(frozen=True)
class Judges:
    """``labels`` sees classes; ``features`` sees hours and biomes and gives pooled features."""

    labels: Segmenter
    features: Segmenter


@dataclass(frozen=True)
class Seen:
    """What the judges see in N pictures.

    ``classes`` is uint8 (N, s, s); ``hours`` (N,) are indices of hours; ``pooled`` are float64
    (N, features).
    """

    classes: NDArray[np.uint8]
    hours: NDArray[np.int64]
    pooled: NDArray[np.float64]


def train_judges(data: Path, steps: int, device: torch.device | str = "cpu") -> Judges:
    """Return judges on ``device``, trained on the split judge-train for ``steps`` steps.

    They are kept in ``data``/judges and read from there if data and steps are the same.
    """
    pairs = open_pairs(data, "judge-train")
    found = []
    for width, seed in zip((LABELS_WIDTH, FEATURES_WIDTH), SEEDS, strict=True):
        mark = {"data": pairs.fingerprint, "steps": steps}
        file = data / "judges" / f"judge-{width}-{seed}-{steps}.safetensors"
        judge = Segmenter(width).eval().requires_grad_(False)
        if file.exists() and (stored := read_tensors(file))[1].get("mark") == mark:
            judge.load_state_dict(stored[0])
            judge.to(device)
        else:
            judge = train_segmenter(pairs, Course(width, seed, steps), device)
            write_tensors(file, judge.state_dict(), {"mark": mark})
        found.append(judge)
    return Judges(*found)


@torch.inference_mode()
def look(judges: Judges, images: NDArray[np.uint8]) -> Seen:
    """Return what the judges see in ``images``, uint8 (N, s, s, 3)."""
    device = next(judges.labels.parameters()).device
    classes, hours, pooled = [], [], []
    for start in range(0, len(images), BATCH):
        pictures = to_pictures(images[start : start + BATCH]).to(device)
        classes.append(judges.labels(pictures).classes.argmax(1).to(torch.uint8).cpu().numpy())
        sight = judges.features(pictures)
        hours.append(sight.hour.argmax(1).cpu().numpy())
        pooled.append(sight.pooled.double().cpu().numpy())
    return Seen(np.concatenate(classes), np.concatenate(hours), np.concatenate(pooled))
