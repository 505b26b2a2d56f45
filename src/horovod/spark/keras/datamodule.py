"""The data modules of KerasEstimator, whose data ``model.fit`` takes."""

from __future__ import annotations

from typing import Any

from horovod.spark.common import datamodule
from horovod.spark.common.datamodule import DataModule

__all__ = ["DataModule", "ParquetDataModule", "PetastormDataModule"]


class ParquetDataModule(datamodule.ParquetDataModule):
    """Reads Parquet files; ``make_dataset`` makes data sets of TensorFlow from their batches."""

    def train_data(self) -> Any:
        """Batches of all epochs: inputs, labels and perhaps sample weights."""
        return self.options["make_dataset"](super().train_data)

    def val_data(self) -> Any:
        """Return the validation data, in the same way."""
        return self.options["make_dataset"](super().val_data)


PetastormDataModule = ParquetDataModule
"""The name that scripts import; Parquet is read without petastorm."""
