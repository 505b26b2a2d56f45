"""The Params that all estimators share, and those of the models that they make."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.ml.param import TypeConverters

from horovod.spark.common.param_table import ParamRow, TableParams, whole_number, with_params

__all__ = ["EstimatorParams", "ModelParams"]

_Text = TypeConverters.toString
_Texts = TypeConverters.toListString
_Flag = TypeConverters.toBoolean
_Floats = TypeConverters.toListFloat
_POOLS = ("thread", "process", "dummy")
_START_METHODS = ("fork", "spawn", "forkserver")


def _one_of(*words: str) -> Any:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is none of {', '.join(map(repr, words))}")
        return str(value)

    return check


def _validation(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | float | int):
        raise ValueError(f"validation={value!r} is neither a column nor a share in [0, 1)")
    if not isinstance(value, str) and not 0 <= value < 1:
        raise ValueError(f"validation={value!r}: a share of the rows is in [0, 1)")
    return value


def _without_effect(value: Any) -> Any:
    warnings.warn(
        "shuffle_buffer_size has no effect and will go: readers shuffle whole row groups",
        DeprecationWarning,
        stacklevel=5,
    )
    return value


@with_params(
    ParamRow(
        "num_proc", "the number of ranks; None: what Spark runs at a time", check=whole_number(1)
    ),
    ParamRow(
        "min_num_proc",
        "the fewest ranks with which an elastic training goes on; None: num_proc",
        check=whole_number(1),
    ),
    ParamRow(
        "max_num_proc",
        "the most ranks of an elastic training; None: num_proc",
        check=whole_number(1),
    ),
    ParamRow("backend", "what starts the ranks, in place of num_proc"),
    ParamRow("store", "where data, checkpoints and logs are"),
    ParamRow("model", "the model to train"),
    ParamRow("optimizer", "the optimizer, with the learning rate for one rank"),
    ParamRow("loss", "a function, or a list with one for each label"),
    ParamRow("loss_weights", "what the loss of each label counts", check=_Floats),
    ParamRow("metrics", "what is measured beside the loss", []),
    ParamRow("sample_weight_col", "the column of the weights of rows", check=_Text),
    ParamRow("gradient_compression", "how gradients travel: hvd.Compression.none, fp16, bf16"),
    ParamRow("feature_cols", "the inputs of the model, in order", check=_Texts),
    ParamRow("label_cols", "what the outputs are compared with, in order", check=_Texts),
    ParamRow("continuous_cols", "columns of numbers, for a data module", check=_Texts),
    ParamRow("categorical_cols", "columns of categories, for a data module", check=_Texts),
    ParamRow("validation", "a column that marks rows, or a share of all rows", check=_validation),
    ParamRow("callbacks", "callbacks of the framework", []),
    ParamRow("batch_size", "rows for each rank and step", 32, whole_number(1)),
    ParamRow("val_batch_size", "the same in validation; None: batch_size", check=whole_number(1)),
    ParamRow(
        "epochs", "how many there are, with those before a run was resumed", 1, whole_number(1)
    ),
    ParamRow("train_steps_per_epoch", "None: what all rows need", check=whole_number(1)),
    ParamRow("validation_steps_per_epoch", "None: what all rows need", check=whole_number(1)),
    ParamRow(
        "random_seed", "of the framework and of the order of rows", check=TypeConverters.toInt
    ),
    ParamRow("shuffle", "whether each epoch has another order of rows", True, _Flag),
    ParamRow(
        "shuffle_buffer_size",
        "deprecated, no effect",
        check=_without_effect,
        stems=("ShufflingBufferSize",),
    ),
    ParamRow("verbose", "0 is silent, 1 tells of epochs, 2 of batches", 1, TypeConverters.toInt),
    ParamRow("partitions_per_process", "Parquet files for each rank", 10, whole_number(1)),
    ParamRow("run_id", "of the run to resume, or a name for a new one", check=_Text),
    ParamRow("compress_sparse_cols", "store sparse vectors without their zeros", False, _Flag),
    ParamRow("transformation_fn", "a function of one row, a dict, that returns a dict"),
    ParamRow("transformation_edit_fields", "Lightning: (name, dtype, shape, nullable) of fields"),
    ParamRow("transformation_removed_fields", "Lightning: names of fields to drop"),
    ParamRow(
        "train_reader_num_workers",
        "threads that read ahead for training",
        2,
        whole_number(1),
        ("TrainReaderNumWorker",),
    ),
    ParamRow(
        "val_reader_num_workers",
        "threads that read ahead for validation",
        2,
        whole_number(1),
        ("ValReaderNumWorker",),
    ),
    ParamRow("reader_pool_type", "readers are threads, whatever it is", "thread", _one_of(*_POOLS)),
    ParamRow("label_shapes", "shapes of the labels, -1 for the batch"),
    ParamRow(
        "inmemory_cache_all", "keep this rank's rows in memory", False, _Flag, ("InMemoryCacheAll",)
    ),
    ParamRow("use_gpu", "train on the GPU that Spark gives to a task, if any", True, _Flag),
    ParamRow("mp_start_method", "how processes of a rank start", check=_one_of(*_START_METHODS)),
    ParamRow(
        "backward_passes_per_step", "batches whose gradients are one step", 1, whole_number(1)
    ),
)
class EstimatorParams(TableParams):
    """The parameters of an estimator; see the table in docs/spark_estimators.md."""


@with_params(
    ParamRow("history", "what was measured in each epoch"),
    ParamRow("model", "the trained model"),
    ParamRow("feature_columns", "the inputs of the model, in order", check=_Texts),
    ParamRow(
        "label_columns",
        "what the outputs were compared with, in order",
        check=_Texts,
        stems=("LabelColoumns",),
    ),
    ParamRow("run_id", "of the training", check=_Text),
    ParamRow("_metadata", "types and shapes of the columns, as the training saw them"),
    ParamRow("transformation_fn", "applied to each row, as in the training; None for nothing"),
    ParamRow("outputCols", "the columns of predictions; None: <label>__output", check=_Texts),
)
class ModelParams(TableParams):
    """The parameters of a trained model."""
