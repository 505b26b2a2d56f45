"""Preparing data for ranks, and what is known of it."""

from __future__ import annotations

from horovod.spark.common.frames import check_validation
from horovod.spark.common.metadata import get_spark_df_output_schema
from horovod.spark.common.place import host_hash, is_databricks
from horovod.spark.common.preparation import (
    clear_training_cache,
    get_dataset_properties,
    get_simple_meta_from_parquet,
    prepare_data,
)
from horovod.spark.common.shapes import check_shape_compatibility, to_list

__all__ = [
    "check_shape_compatibility",
    "check_validation",
    "clear_training_cache",
    "get_dataset_properties",
    "get_simple_meta_from_parquet",
    "get_spark_df_output_schema",
    "host_hash",
    "is_databricks",
    "prepare_data",
    "to_list",
]
