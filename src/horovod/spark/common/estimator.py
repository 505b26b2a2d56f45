"""Estimators train a model on all ranks of a job in Spark; models predict."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model

from horovod.errors import UsageError
from horovod.spark.common import transform
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.checks import check_data, check_frame, check_lengths, given_of
from horovod.spark.common.data_folder import look_into
from horovod.spark.common.description import flat
from horovod.spark.common.params import EstimatorParams, ModelParams
from horovod.spark.common.runs import DATA, begin_run, check_run, reserved
from horovod.spark.common.serialization import Saved
from horovod.spark.common.training import TrainingData
from horovod.spark.common.util import (
    check_shape_compatibility,
    check_validation,
    get_dataset_properties,
    get_simple_meta_from_parquet,
    prepare_data,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from pyspark.sql import DataFrame

    from horovod.spark.common.data_folder import DataFolder
    from horovod.spark.common.prediction import Predictor
    from horovod.spark.common.runs import RunFolder

__all__ = ["HorovodEstimator", "HorovodModel"]

_logger = logging.getLogger(__name__)

_NOT_COMPARED = frozenset(
    (
        # Described apart, or they say where and how, not what.
        *("model", "optimizer", "store", "run_id", "backend", "backend_env", "verbose"),
        *("num_proc", "min_num_proc", "max_num_proc", "num_gpus", "use_gpu", "mp_start_method"),
        # A run may go on with more.
        "epochs",
        # Of the files and the readers.
        *("partitions_per_process", "inmemory_cache_all", "reader_pool_type", "loader_num_epochs"),
        *("train_reader_num_workers", "val_reader_num_workers", "shuffle_buffer_size"),
        *("train_async_data_loader_queue_size", "val_async_data_loader_queue_size"),
        *("tensorflow_dataset_prefetch_buffer_size", "debug_data_loader"),
        # What is told of the training.
        *("logger", "log_every_n_steps", "profiler"),
    )
)


class HorovodEstimator(Saved, EstimatorParams, Estimator):  # type: ignore[misc]
    """Trains a model of some framework on all rows of a DataFrame, or of Parquet files.

    Its subclasses say how: :meth:`_train` starts the ranks and makes the model of Spark.
    """

    _run_prefix = "horovod"

    def fit_on_parquet(
        self, params: Mapping[object, object] | None = None, dataset_idx: int | None = None
    ) -> Any:
        """Trains on the files in the store's folders for training and validation data.

        Args:
            params: Params for this call.
            dataset_idx: which of the prepared data sets, as ``prepare_data`` gives it; None for the
                folders without a number.

        Returns:
            The trained model, as of ``fit``.

        Raises:
            UsageError: there are no such files, or they lack a column.
        """
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        self._check_params()
        store = self.value("store")
        for path in self._data_paths(dataset_idx):
            if not store.exists(path):
                raise UsageError(
                    f"fit_on_parquet: there is no {path}; write the data there, or give the "
                    "dataset_idx of prepare_data"
                )
        with self._reserved_run():
            return self._fit_on_files(dataset_idx)

    def _fit_on_files(self, dataset_idx: int | None) -> Any:
        store = self.value("store")
        found = get_simple_meta_from_parquet(
            store,
            label_columns=self.value("label_cols"),
            feature_columns=self.value("feature_cols"),
            sample_weight_col=self.value("sample_weight_col"),
            dataset_idx=dataset_idx,
        )
        return self._fit_on(self._backend(), found, dataset_idx)

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_params()
        self._check_columns(dataset.columns)
        backend = self._backend()
        check_frame(self, dataset)
        with self._reserved_run():
            return self._fit_on_frame(backend, dataset)

    def _fit_on_frame(self, backend: Any, dataset: DataFrame) -> Any:
        with prepare_data(
            backend.num_processes(),
            self.value("store"),
            dataset,
            label_columns=self.value("label_cols"),
            feature_columns=self.value("feature_cols"),
            validation=self.value("validation"),
            sample_weight_col=self.value("sample_weight_col"),
            compress_sparse=self.value("compress_sparse_cols"),
            partitions_per_process=self.value("partitions_per_process"),
            verbose=self.value("verbose"),
            check_lengths=partial(check_lengths, self) if given_of(self) == "numbers" else None,
        ) as dataset_idx:
            return self._fit_on(backend, get_dataset_properties(dataset_idx), dataset_idx)

    def _fit_on(self, backend: Any, found: Any, dataset_idx: int | None) -> Any:
        train_rows, val_rows, metadata, _ = found
        self._check_columns(metadata)
        check_data(self, metadata)
        self._check_shapes(metadata)
        store = self.value("store")
        folders = [look_into(store, path, ()) for path in self._data_paths(dataset_idx)]
        marks = [folder.mark for folder in folders]
        data = TrainingData.of(self, train_rows, val_rows, metadata, dataset_idx, marks)
        description = {**self._description(), **_of_data(folders, metadata)}
        run = begin_run(store, self.value("run_id"), self._run_prefix, description)
        return self._train(backend, data, run)

    def _train(self, backend: Any, data: TrainingData, run: RunFolder) -> Any:
        raise NotImplementedError

    @contextmanager
    def _reserved_run(self) -> Iterator[None]:
        """Keep the run for this fit inside the block.

        Raises:
            UsageError: another fit has it, or it trains something else.
        """
        store, run_id = self.value("store"), self.value("run_id")
        with reserved(store, run_id):
            check_run(store, run_id, self._description())
            yield

    def _description(self) -> dict[str, str]:
        """Return the training without its data, see :mod:`horovod.spark.common.description`."""
        found = {"estimator": f"{type(self).__module__}.{type(self).__qualname__}"}
        found |= flat("model", self._described_model())
        found |= flat("optimizer", self._described_optimizer())
        for name in sorted(set(self.param_rows) - _NOT_COMPARED):
            found |= flat(name, self.value(name))
        return found

    def _described_model(self) -> Any:
        """Return the parts of the model, without the values of its parameters."""
        raise NotImplementedError

    def _described_optimizer(self) -> Any:
        """Return the options of the optimizer."""
        raise NotImplementedError

    def _check_shapes(self, metadata: Mapping[str, Any]) -> None:
        # Not the outputs: a number can be the label of many, and losses check what they take.
        check_shape_compatibility(
            metadata,
            self.value("feature_cols"),
            self.value("label_cols"),
            input_shapes=self._input_shapes(),
            label_shapes=self.value("label_shapes"),
        )

    def _input_shapes(self) -> Sequence[Sequence[int]] | None:
        """Return the shapes of the features, with -1 for the batch; None if they are not known."""
        shapes: Sequence[Sequence[int]] | None = self.value("input_shapes")
        return shapes

    def _params_of_model(self, data: TrainingData, run: RunFolder) -> dict[str, Any]:
        """Return the Params of the trained model that all frameworks have."""
        return {
            "feature_columns": self.value("feature_cols"),
            "label_columns": self.value("label_cols"),
            "run_id": run.run_id,
            "_metadata": dict(data.metadata),
            "transformation_fn": self.value("transformation_fn"),
        }

    def _data_paths(self, dataset_idx: int | None) -> list[str]:
        store = self.value("store")
        paths = [store.get_train_data_path(dataset_idx)]
        if self.value("validation"):
            paths.append(store.get_val_data_path(dataset_idx))
        return paths

    def _backend(self) -> Any:
        backend = self.value("backend")
        names = ("num_proc", "min_num_proc", "max_num_proc")
        numbers = {name: self.value(name) for name in names if self.value(name) is not None}
        if backend is not None and numbers:
            raise UsageError(
                f"give either backend or {next(iter(numbers))}: the backend has its own number; "
                f"SparkBackend takes {', '.join(names)}"
            )
        return backend or SparkBackend(**numbers, verbose=self.value("verbose"))

    def _check_params(self) -> None:
        for name, hint in (
            ("model", "what is to be trained"),
            ("store", "where data and checkpoints go, such as Store.create('/shared/folder')"),
            ("feature_cols", "the columns that the model is given"),
            ("label_cols", "the columns that its outputs are compared with"),
        ):
            value = self.value(name)
            if value is None or value == []:
                raise UsageError(f"{type(self).__name__}: give {name}, {hint}")
        check_validation(self.value("validation"))

    def _check_columns(self, columns: Any) -> None:
        named: Sequence[str] = [*self.value("feature_cols"), *self.value("label_cols")]
        weights = self.value("sample_weight_col")
        for name in [*named, weights] if weights else named:
            if name not in columns:
                raise UsageError(
                    f"{type(self).__name__}: there is no column {name!r}; there are "
                    f"{', '.join(columns)}"
                )


class HorovodModel(Saved, ModelParams, Model):  # type: ignore[misc]
    """A trained model, which adds columns of predictions to a DataFrame.

    Its subclasses say how a partition predicts: :meth:`_predictor`.
    """

    _is_announced = False

    def transform(self, dataset: DataFrame, params: object = None) -> DataFrame:
        """Adds a column of predictions for each label; all rows and columns stay.

        It is computed on CPUs, in batches, one copy of the model for each task. A prediction has
        the type that the label had in training; integers and booleans are rounded, and null where
        the type cannot hold what the model gives. Several numbers for a label of one number are a
        vector.

        A ``transformation_fn`` of the training is applied to each row first. It gets the columns
        that it had in training; in place of labels and weights that the frame lacks, NaN.

        Args:
            dataset: has the feature columns.
            params: Params for this call.

        Raises:
            UsageError: a column is missing or has no numbers, or one of the outputs is there
                already.
        """
        return super().transform(dataset, params)

    def output_columns(self) -> list[str]:
        """The names of the columns of predictions, one for each label."""
        labels = self.value("label_columns")
        names = self.value("outputCols") or [f"{label}__output" for label in labels]
        if len(names) != len(labels):
            raise UsageError(
                f"transform: {len(labels)} labels need as many outputCols, not {len(names)}"
            )
        return list(names)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if self.value("transformation_fn") is not None and not self._is_announced:
            self._is_announced = True
            _logger.warning(
                "transform applies the transformation_fn of the training to each row; if the "
                "DataFrame is transformed already, call setTransformationFn(None)"
            )
        plan = transform.Plan(
            features=self.value("feature_columns"),
            labels=self.value("label_columns"),
            outputs=self.output_columns(),
            metadata=self.value("_metadata") or {},
            transformation=self.value("transformation_fn"),
        )
        return transform.predicted(dataset, plan, self._predictor(), self._example())

    def _predictor(self) -> Predictor:
        """Return a predictor that can be sent to the tasks."""
        raise NotImplementedError

    def _example(self) -> list[np.ndarray] | None:
        """A row of features as the model takes them; None if their shapes are not known."""
        return None


def _of_data(folders: Sequence[DataFolder], metadata: Mapping[str, Any]) -> dict[str, str]:
    columns = {
        name: {key: getattr(each, "__name__", each) for key, each in column.items()}
        for name, column in metadata.items()
    }
    rows = [folder.num_rows for folder in folders]
    content = " and ".join(folder.content for folder in folders)
    return {f"{DATA}rows": str(rows), f"{DATA}content": content, **flat(f"{DATA}columns", columns)}
