"""What rank 0 shows of a run: lines, scalars and sheets of pictures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from landscapes.errors import LandscapesError, naming_failure
from landscapes.nets import encode_labels
from landscapes.palette import paint_labels
from landscapes.train.batches import to_images
from landscapes.train.step import TERMS

if TYPE_CHECKING:
    from pathlib import Path

    from landscapes.train.batches import Batch
    from landscapes.train.networks import Painter


class Lines:
    """One line every ``every`` steps: step, pictures a second, and the terms of the loss.

    ``board``, a SummaryWriter of TensorBoard or None, gets the same numbers.
    """

    def __init__(self, every: int, board: Any) -> None:
        self.every = every
        self._board = board
        self._sums = torch.zeros(len(TERMS))
        self._steps, self._pictures = 0, 0
        self._since = time.monotonic()

    def add(self, step: int, losses: torch.Tensor, pictures: int) -> None:
        """Note the losses (5,) of a step over ``pictures`` of all ranks; print if it is time."""
        self._sums += losses
        self._steps += 1
        self._pictures += pictures
        if step % self.every == 0:
            self.flush(step)

    def flush(self, step: int) -> None:
        """Print what was noted since the last line, if anything."""
        if not self._steps:
            return
        now = time.monotonic()
        rate = self._pictures / (now - self._since)
        means = dict(zip(TERMS, (self._sums / self._steps).tolist(), strict=True))
        text = "  ".join(f"{name} {value:.3f}" for name, value in means.items())
        print(f"step {step}  {rate:.1f} img/s  {text}", flush=True)
        if self._board is not None:
            for name, value in {**means, "pictures_per_s": rate}.items():
                self._board.add_scalar(name, value, step)
        self._sums.zero_()
        self._steps, self._pictures, self._since = 0, 0, now

    def close(self) -> None:
        """Write what is buffered."""
        if self._board is not None:
            self._board.close()


def open_board(folder: Path) -> Any:
    """Return a SummaryWriter into ``folder``. Refuse to go without TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise LandscapesError(
            f"--tensorboard needs a package ({error}): pip install 'landscapes[tensorboard]'."
        ) from error
    make_writer: Any = SummaryWriter  # which has types in some environments only
    return make_writer(str(folder))


@torch.no_grad()
def write_sheet(file: Path, average: Painter, batch: Batch) -> None:
    """Write a picture with a column for each pair of ``batch``: map, photo, and what is painted.

    The last row has the style of the next pair.
    """
    mean, _ = average.encoder(batch.pictures)
    planes = encode_labels(batch.labels, batch.pictures.dtype)
    rows = [
        paint_labels(batch.labels.cpu().numpy()),
        to_images(batch.pictures),
        to_images(average.generator(planes, mean)),
        to_images(average.generator(planes, mean.roll(-1, 0))),
    ]
    image = np.concatenate([np.concatenate(list(row), axis=1) for row in rows])
    with naming_failure(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
