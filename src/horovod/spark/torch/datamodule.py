"""The data modules of TorchEstimator."""

from horovod.spark.common.datamodule import DataModule, ParquetDataModule

__all__ = ["DataModule", "ParquetDataModule", "PetastormDataModule"]

PetastormDataModule = ParquetDataModule
"""The name that scripts import; Parquet is read without petastorm."""
