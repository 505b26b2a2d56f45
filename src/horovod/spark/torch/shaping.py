"""From the columns of a batch to what a model of PyTorch takes, and its loss."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.spark.common.training import TrainingData

    Outputs = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]
    """What a model returns."""

    Columns = Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]]
    """The columns of a batch by name, or a pair of such features and labels."""


def dtype_of(model: torch.nn.Module) -> torch.dtype:
    """The floating-point type in which a model computes; float32 if it has no parameters."""
    for param in model.parameters():
        if param.is_floating_point():
            return param.dtype
    return torch.float32


@dataclass(frozen=True)
class Batch:
    """A batch on the device of the model.

    Attributes:
        inputs: in the order of the features.
        labels: in the order of the labels.
        weights: (rows,) or None.
    """

    inputs: list[torch.Tensor]
    labels: list[torch.Tensor]
    weights: torch.Tensor | None

    @property
    def rows(self) -> int:
        """Return the number of its rows."""
        return len(self.inputs[0])

    def twice(self) -> Batch:
        """Return each row twice: their means, and so the gradients, are the same."""
        return Batch(
            [torch.cat([tensor, tensor]) for tensor in self.inputs],
            [torch.cat([tensor, tensor]) for tensor in self.labels],
            None if self.weights is None else torch.cat([self.weights, self.weights]),
        )


@dataclass(frozen=True)
class Shaping:
    """Turns the columns of a batch into tensors.

    Attributes:
        data: which columns there are, and in what form.
        dtype: of inputs, weights, and labels that are not integers; these are int64.
        device: where the tensors go.
        input_shapes: with -1 for the batch; None leaves inputs as they are.
        label_shapes: the same for labels; None takes the shape of the output, if it has as many
            elements.
    """

    data: TrainingData
    dtype: torch.dtype
    device: torch.device
    input_shapes: Sequence[Sequence[int]] | None = None
    label_shapes: Sequence[Sequence[int]] | None = None

    def batch(self, columns: Columns) -> Batch:
        """The tensors of a batch.

        Args:
            columns: by name an array or a tensor; or a pair of such features and labels.
        """
        if isinstance(columns, tuple):
            columns = {**columns[0], **columns[1]}
        inputs = [self._tensor(columns, name).to(self.dtype) for name in self.data.features]
        labels = [self._label(columns, name) for name in self.data.labels]
        weights = None
        if self.data.weights is not None:
            weights = self._tensor(columns, self.data.weights).to(self.dtype)
        return Batch(reshaped(inputs, self.input_shapes), labels, weights)

    def outputs_and_labels(
        self, outputs: Outputs, labels: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Outputs as a list, and the labels in shapes that fit them.

        Raises:
            UsageError: the model has fewer outputs than there are labels.
        """
        listed = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        if len(listed) < len(labels):
            raise UsageError(f"the model has {len(listed)} outputs for {len(labels)} label columns")
        if self.label_shapes is not None:
            return listed, reshaped(labels, self.label_shapes)
        fitted = [
            label.reshape(output.shape) if label.numel() == output.numel() else label
            for output, label in zip(listed, labels, strict=False)
        ]
        return listed, fitted

    def _label(self, columns: Mapping[str, Any], name: str) -> torch.Tensor:
        label = self._tensor(columns, name)
        return label.to(self.dtype if label.is_floating_point() else torch.int64)

    def _tensor(self, columns: Mapping[str, Any], name: str) -> torch.Tensor:
        values = self.data.dense(columns, name)
        if isinstance(values, np.ndarray) and values.dtype.kind == "u":
            values = values.astype(np.int64)  # PyTorch knows few types without a sign
        elif isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()
        return torch.as_tensor(values).to(self.device)


def reshaped(
    tensors: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]] | None
) -> list[torch.Tensor]:
    """Tensors in given shapes.

    Raises:
        UsageError: the numbers of tensors and shapes differ, or a shape does not fit.
    """
    if shapes is None:
        return list(tensors)
    if len(shapes) != len(tensors):
        raise UsageError(f"{len(shapes)} shapes are given for {len(tensors)} columns")
    found = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        row = math.prod(tensor.shape[1:])
        if abs(math.prod(shape)) != row:
            raise UsageError(f"a row of {row} numbers does not fit the shape {list(shape)}")
        found.append(tensor.reshape(list(shape)))
    return found


def called(
    model: torch.nn.Module, inputs: Sequence[object], names: Sequence[str] | None = None
) -> list[Any]:
    """The outputs of a model as a list.

    Args:
        model: to call.
        inputs: of the model.
        names: of the inputs; None if their order counts. It also counts if the arguments of the
            model have other names.
    """
    if names is not None and set(names) <= set(inspect.signature(model.forward).parameters):
        outputs = model(**dict(zip(names, inputs, strict=True)))
    else:
        outputs = model(*inputs)
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def one_for_each(values: object, count: int, what: str) -> list[Any]:
    """A list with a value for each label.

    Args:
        values: a value, or a list of one or of ``count``.
        count: number of labels.
        what: for the message.

    Raises:
        UsageError: it has another length.
    """
    listed = list(values) if isinstance(values, list | tuple) else [values]
    if len(listed) == 1:
        return listed * count
    if len(listed) != count:
        raise UsageError(f"{what} has {len(listed)} entries for {count} labels")
    return listed
