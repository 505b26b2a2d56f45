"""Compute the loss of a batch, and give PyTorch's losses and metrics integer labels."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch

from horovod.errors import UsageError
from horovod.spark.torch.shaping import one_for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Loss:
    """The loss of a batch: the weighted sum over the labels.

    Args:
        functions: one for each label, called with output and label.
        weights: one for each label.
    """

    def __init__(
        self, functions: Sequence[Callable[..., torch.Tensor]], weights: Sequence[float]
    ) -> None:
        self._functions = functions
        self._weights = weights
        self._whole = [OfLabels(function) for function in functions]
        self._by_row: list[OfLabels] = []

    def __call__(
        self,
        outputs: Sequence[torch.Tensor],
        labels: Sequence[torch.Tensor],
        sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return a scalar; with sample weights, the mean over the rows of loss times weight."""
        total: Any = 0.0
        if sample_weights is not None and not self._by_row:
            self._by_row = [OfLabels(_by_row(function)) for function in self._functions]
        for index, weight in enumerate(self._weights):
            if sample_weights is None:
                loss = self._whole[index](outputs[index], labels[index])
            else:
                by_row = self._by_row[index](outputs[index], labels[index])
                by_row = self._checked(by_row, index, len(sample_weights))
                loss = (by_row * sample_weights.reshape(-1, 1)).mean()
            total = total + weight * loss
        return torch.as_tensor(total)

    def _checked(self, by_row: torch.Tensor, index: int, rows: int) -> torch.Tensor:
        if by_row.numel() % rows or (by_row.dim() == 0 and rows > 1):
            raise UsageError(
                f"sample_weight_col needs a loss for each row, but loss "
                f"{_name_of(self._functions[index])} gives {by_row.numel()} for {rows} rows with "
                "reduction='none'"
            )
        return by_row.reshape(rows, -1)


def loss_of(functions: object, weights: object, labels: Sequence[str]) -> Loss:
    """Return the loss of some labels.

    Args:
        functions: one, or one for each label.
        weights: the same; None for equal ones.
        labels: their names.

    Raises:
        UsageError: the numbers do not fit.
    """
    count = len(labels)
    return Loss(
        one_for_each(functions, count, "loss"),
        one_for_each(weights or [1.0 / count] * count, count, "loss_weights"),
    )


def check_loss_by_row(function: Callable[..., object]) -> None:
    """Refuse a loss that cannot give a value for each row, which sample weights need.

    Raises:
        UsageError: it has no ``reduction``.
    """
    if isinstance(function, torch.nn.Module):
        has_reduction = hasattr(function, "reduction")
    else:
        try:
            given = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return  # written in C: it says itself what it lacks
        has_keywords = any(each.kind is each.VAR_KEYWORD for each in given.values())
        has_reduction = has_keywords or "reduction" in given
    if not has_reduction:
        raise UsageError(
            f"sample_weight_col needs a loss for each row, but loss {_name_of(function)} has no "
            "reduction: let it take reduction='none', such as torch.nn.functional.mse_loss does, "
            "and return one value for each row then"
        )


def _by_row(function: Any) -> Any:
    """Return the same loss without the mean over its rows."""
    check_loss_by_row(function)
    if isinstance(function, torch.nn.Module):
        function = copy.copy(function)
        function.reduction = "none"
        return function
    return lambda output, label: function(output, label, reduction="none")


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


class OfLabels:
    """A loss or a metric that gets integer labels in the type that it needs.

    Integer labels come as int64, which is what losses of classes take. A function that fails with
    them gets the floating-point type of the output, and from then on always: most losses of
    numbers fail with integers, some not before the gradient is computed.

    Args:
        function: of output and label.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._as_float: bool | None = None

    def __call__(self, output: torch.Tensor, label: torch.Tensor) -> Any:
        """Return what the function gives."""
        if self._as_float is None and not label.is_floating_point():
            return self._find_out(output, label)
        return self._function(output, label.to(output.dtype) if self._as_float else label)

    def _find_out(self, output: torch.Tensor, label: torch.Tensor) -> Any:
        try:
            value = self._function(output, label)
            if _has_gradient(value, output):
                self._as_float = False
            return value
        except RuntimeError as error:
            try:
                value = self._function(output, label.to(output.dtype))
                _has_gradient(value, output)
            except Exception:
                raise error from None
        self._as_float = True
        return value


def _has_gradient(value: Any, output: torch.Tensor) -> bool:
    """Return whether a loss has a gradient, or raise the error of computing it."""
    if not (isinstance(value, torch.Tensor) and value.requires_grad and output.requires_grad):
        return False
    torch.autograd.grad(value.sum(), output, retain_graph=True, allow_unused=True)
    return True
