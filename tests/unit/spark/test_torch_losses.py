"""Losses and metrics of PyTorch get integer labels as they want them, and sample weights."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")
torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from horovod.errors import UsageError  # noqa: E402
from horovod.spark.torch.losses import Loss, OfLabels, check_loss_by_row  # noqa: E402

ONE = torch.tensor([[0.5], [-1.0], [2.0]])
CLASSES = torch.tensor([[0.5, 1.0], [-1.0, 0.0], [2.0, -2.0]])
WHOLE = torch.tensor([1, 0, 1])
OF_CLASSES = [functional.cross_entropy, torch.nn.CrossEntropyLoss(), torch.nn.MultiMarginLoss()]
OF_NUMBERS = [
    functional.binary_cross_entropy_with_logits,
    torch.nn.BCEWithLogitsLoss(),
    functional.mse_loss,
    torch.nn.L1Loss(),
    torch.nn.SmoothL1Loss(),
    torch.nn.SoftMarginLoss(),
    lambda output, label: ((output - label) ** 2).mean(),
]


def gradient(function: Any, output: Any, label: Any, *weights: Any) -> Any:
    output = output.clone().requires_grad_()
    loss = Loss([function], [1.0])
    for _ in range(2):
        output.grad = None
        loss([output], [label], *weights).backward()
    return output.grad


@pytest.mark.parametrize("function", OF_CLASSES, ids=str)
def test_losses_of_classes_take_integers(function: Any) -> None:
    expected = CLASSES.clone().requires_grad_()
    function(expected, WHOLE).backward()
    assert torch.equal(gradient(function, CLASSES, WHOLE), expected.grad)


@pytest.mark.parametrize("function", OF_NUMBERS, ids=str)
def test_losses_of_numbers_take_integers_as_numbers(function: Any) -> None:
    label = WHOLE.reshape(3, 1)
    expected = ONE.clone().requires_grad_()
    function(expected, label.float()).backward()
    assert torch.equal(gradient(function, ONE, label), expected.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_numbers_are_of_the_type_of_the_output(dtype: Any) -> None:
    assert gradient(functional.mse_loss, ONE.to(dtype), WHOLE.reshape(3, 1)).dtype == dtype


def test_a_function_is_called_once_for_a_batch_when_it_is_known() -> None:
    calls = []

    def loss(output: Any, label: Any) -> Any:
        calls.append(label.dtype)
        return functional.binary_cross_entropy_with_logits(output, label)

    of_labels = OfLabels(loss)
    output = ONE.clone().requires_grad_()
    for _ in range(3):
        of_labels(output, WHOLE.reshape(3, 1))
    assert calls == [torch.int64, *[torch.float32] * 3]


def test_metrics_take_integers_without_a_gradient() -> None:
    def accuracy(output: Any, label: Any) -> Any:
        assert label.dtype == torch.int64
        return (output.argmax(1) == label).float().mean()

    with torch.no_grad():
        for _ in range(2):
            assert OfLabels(accuracy)(CLASSES, WHOLE) == pytest.approx(1 / 3)
            bce = OfLabels(functional.binary_cross_entropy_with_logits)
            label = WHOLE.reshape(3, 1)
            expected = functional.binary_cross_entropy_with_logits(ONE, label.float())
            assert torch.equal(bce(ONE, label), expected)


def test_an_error_of_another_cause_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        gradient(OF_NUMBERS[-1], ONE, torch.tensor([[1, 2]]).repeat(7, 1))
    with pytest.raises(IndexError, match="out of bounds"):
        gradient(functional.cross_entropy, CLASSES, torch.tensor([1, 0, 7]))


@pytest.mark.parametrize(
    "function", [functional.binary_cross_entropy_with_logits, torch.nn.MSELoss()], ids=str
)
def test_weights_of_rows_go_with_integers(function: Any) -> None:
    weights = torch.tensor([1.0, 2.0, 0.0])
    expected = ONE.clone().requires_grad_()
    plain = functional.mse_loss if isinstance(function, torch.nn.MSELoss) else function
    by_row = plain(expected, WHOLE.reshape(3, 1).float(), reduction="none")
    (by_row * weights.reshape(3, 1)).mean().backward()
    assert torch.equal(gradient(function, ONE, WHOLE.reshape(3, 1), weights), expected.grad)


class NoReduction(torch.nn.Module):  # type: ignore[misc]
    def forward(self, output: Any, label: Any) -> Any:
        return ((output - label) ** 2).mean()


def scalar(output: Any, label: Any, reduction: str = "mean") -> Any:
    return (output - label).mean()


@pytest.mark.parametrize("function", [lambda output, label: output, NoReduction()])
def test_a_loss_that_cannot_be_weighed_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match=r"has no reduction: let it take reduction='none'"):
        check_loss_by_row(function)
    with pytest.raises(UsageError, match="has no reduction"):
        gradient(function, ONE, WHOLE, torch.ones(3))


def test_a_loss_that_ignores_its_reduction_is_refused() -> None:
    check_loss_by_row(scalar)
    with pytest.raises(UsageError, match=r"loss scalar gives 1 for 3 rows"):
        gradient(scalar, ONE, WHOLE.reshape(3, 1), torch.ones(3))


@pytest.mark.parametrize(
    "function",
    [functional.mse_loss, torch.nn.MSELoss(), lambda output, label, **more: output],
    ids=str,
)
def test_losses_that_can_be_weighed(function: Any) -> None:
    check_loss_by_row(function)
