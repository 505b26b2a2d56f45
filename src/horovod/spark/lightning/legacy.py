"""A plain model of PyTorch as a LightningModule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.spark.torch.shaping import called

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    import torch

    from horovod.spark.torch.losses import Loss
    from horovod.spark.torch.model_bytes import OptimizerRecord


class PlainMethods:
    """The methods of such a module, whichever Lightning has its base class."""

    model: Any
    record: OptimizerRecord
    loss: Loss
    features: Sequence[str]
    labels: Sequence[str]
    weights: str | None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the estimator."""
        return self.record.bound_to(self.model)

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch, logged as ``loss``."""
        return self._measured("loss", batch)

    def validation_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Run a validation step in the same way; its loss is logged as ``val_loss``."""
        return self._measured("val_loss", batch)

    def _measured(self, name: str, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        outputs = called(self.model, [batch[feature] for feature in self.features], self.features)
        labels = [
            batch[label].reshape(output.shape)
            if batch[label].numel() == output.numel()
            else batch[label]
            for label, output in zip(self.labels, outputs, strict=False)
        ]
        weights = None if self.weights is None else batch[self.weights]
        loss = self.loss(outputs, labels, weights)
        self.log(name, loss, on_step=False, on_epoch=True, batch_size=len(labels[0]))  # type: ignore[attr-defined]
        return loss


def as_module(library: ModuleType, model: torch.nn.Module, **attributes: object) -> Any:
    """A LightningModule that trains a plain model.

    Args:
        library: ``lightning.pytorch`` or ``pytorch_lightning``.
        model: to train.
        attributes: those of :class:`PlainMethods`.
    """
    module = type("PlainModule", (PlainMethods, library.LightningModule), {})()
    module.model = model
    for name, value in attributes.items():
        setattr(module, name, value)
    return module
