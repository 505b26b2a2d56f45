"""Loaders of the batches that a reader of Parquet files gives."""
