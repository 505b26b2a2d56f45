"""The data module of the Lightning estimator where none is given."""

from horovod.spark.common.datamodule import ParquetDataModule

__all__ = ["PetastormDataModule"]

PetastormDataModule = ParquetDataModule
"""The name that scripts import; Parquet is read without petastorm."""
