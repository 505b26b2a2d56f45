"""The networks as ONNX models, for other runtimes: written, run by onnxruntime, and compared."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from landscapes.errors import LandscapesError, naming_failure
from landscapes.palette import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OPSET = 18
FARTHEST = 1e-3  # of the [-1, 1] of pictures, and of the components of styles


def export(
    module: torch.nn.Module,
    examples: Mapping[str, torch.Tensor],
    output: str,
    file: Path,
    opset: int,
) -> float:
    """Write ``module`` to ``file`` and return how far onnxruntime is from PyTorch at most.

    ``examples`` has a tensor for each input by its name, with at least two rows; any number of rows
    can be run later. Raise LandscapesError if a package is missing, if the opset does not have what
    the network needs, or if the results differ by more than 1e-3: the file is then removed.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise LandscapesError(
                f"ONNX models need {package}: pip install 'landscapes[export]'."
            ) from error
    module.eval()
    rows = torch.export.Dim("n", min=1)
    shapes = tuple({0: rows} for _ in examples)
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                tuple(examples.values()),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=list(examples),
                output_names=[output],
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:
            raise LandscapesError(f"The network cannot be written as ONNX: {error}") from error
    assert program is not None
    with naming_failure(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        program.save(file)
    apart = compare(module, examples, file)
    if not apart <= FARTHEST:
        file.unlink()
        raise LandscapesError(
            f"onnxruntime differs from PyTorch by {apart:.2g}, over {FARTHEST}: removed {file}."
        )
    return apart


def compare(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], file: Path) -> float:
    """Return the largest difference between a model in onnxruntime and ``module`` in PyTorch.

    Both run the inputs as they are and, as another number of rows, their first row alone. For ids,
    return the share of those that differ: where two classes are equally likely, either is right.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    apart = []
    for rows in (None, 1):
        tensors = {name: tensor[:rows] for name, tensor in inputs.items()}
        with torch.inference_mode():
            expected = module(*tensors.values()).numpy()
        (found,) = session.run(None, {name: each.numpy() for name, each in tensors.items()})
        if np.issubdtype(found.dtype, np.integer):
            apart.append((found != expected).mean())
        else:
            apart.append(np.abs(found.astype(np.float64) - expected).max())
    return float(max(apart))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress of the exporter, and its warnings of packages that it does not need."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


class FromIds(torch.nn.Module):
    """A generator that takes ids, int32 (n, size, size), in place of one plane for each class."""

    ids: torch.Tensor

    def __init__(self, generator: torch.nn.Module) -> None:
        super().__init__()
        self.generator = generator
        ids = torch.arange(len(CLASSES), dtype=torch.int32)[None, :, None, None]
        self.register_buffer("ids", ids, persistent=False)

    def forward(self, labels: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return pictures (n, 3, size, size) in [-1, 1]."""
        planes = (labels[:, None] == self.ids).to(style.dtype)
        pictures: torch.Tensor = self.generator(planes, style)
        return pictures


class MeanStyle(torch.nn.Module):
    """An encoder that returns the mean of the style alone."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, photo: torch.Tensor) -> torch.Tensor:
        """Return styles (n, z) of pictures (n, 3, size, size) in [-1, 1]."""
        mean: torch.Tensor = self.encoder(photo)[0]
        return mean


class SeenClasses(torch.nn.Module):
    """A segmenter that returns ids, int32 (n, size, size), in place of logits."""

    def __init__(self, segmenter: torch.nn.Module) -> None:
        super().__init__()
        self.segmenter = segmenter

    def forward(self, photo: torch.Tensor) -> torch.Tensor:
        """Return the likeliest class of each pixel of pictures (n, 3, size, size) in [-1, 1]."""
        classes: torch.Tensor = self.segmenter(photo).classes
        return classes.argmax(1).to(torch.int32)
