"""Label maps as planes: one for each class."""

from __future__ import annotations

import torch

from landscapes.palette import CLASSES

LABELS = len(CLASSES)


def encode_labels(labels: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return ids (n, h, w), of any integer dtype, as planes (n, 9, h, w) of 0 and 1.

    A pixel of an unknown class is 0 in all planes.
    """
    ids = torch.arange(LABELS, device=labels.device)[None, :, None, None]
    return (labels.to(torch.int64)[:, None] == ids).to(dtype)
