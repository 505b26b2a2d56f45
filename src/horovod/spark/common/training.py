"""The settings of a training, whatever the framework: data, steps, the folder of its run."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._settings.config import inherited_environment
from horovod.errors import UsageError
from horovod.spark.common.constants import CUSTOM_SPARSE
from horovod.spark.common.data_mark import check_mark
from horovod.spark.data.division import Division, Stretches, division_after
from horovod.spark.task import get_available_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod.spark.common.datamodule import DataModule
    from horovod.spark.common.params import EstimatorParams

_BY_LOCAL_RANK = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"


@dataclass(frozen=True)
class Part:
    """The rows of training, or those of validation.

    Attributes:
        path: their Parquet folder.
        rows: how many there are in it.
        batch_size: rows for each rank and step.
        steps: for each epoch; None for what all rows need.
        num_threads: that read ahead.
        mark: tells the data in the folder from all others; empty if nobody looks.
    """

    path: str
    rows: int
    batch_size: int
    steps: int | None
    num_threads: int
    mark: str = ""

    def steps_of(self, size: int) -> int:
        """Return the steps in which that many ranks go through all rows."""
        return self.steps or Division(self.rows, size, self.batch_size, drop_last=False).steps


@dataclass(frozen=True)
class EpochRest:
    """The rest of an epoch for the ranks that exist now.

    Attributes:
        division: of the rows that are left.
        steps: that are left.
        stretches: of the epoch that have ended.
        steps_before: how many of an epoch's steps on these ranks are as many rows as are done.
    """

    division: Division
    steps: int
    stretches: Stretches
    steps_before: int


@dataclass(frozen=True)
class TrainingData:
    """The data for the ranks; can be sent to them, except for the types of Spark.

    Attributes:
        module: the class of the data module.
        train, val: the rows; no validation if ``val`` is None.
        features, labels: columns in the order of inputs and outputs.
        weights: the column of sample weights, or None.
        numbers, categories: ``continuous_cols`` and ``categorical_cols``, for a data module.
        metadata: by column, what was found of its type and shape.
        storage_options: of the file system.
        shuffle, seed, transform, in_memory, pool: of the readers.
        use_gpu, start_method: of the process of a rank.
        verbose: as of the estimator.
    """

    module: type[DataModule]
    train: Part
    val: Part | None
    features: list[str]
    labels: list[str]
    weights: str | None
    numbers: list[str] | None
    categories: list[str] | None
    metadata: Mapping[str, Any]
    storage_options: Mapping[str, Any] | None
    shuffle: bool
    seed: int | None
    transform: Callable[[dict[str, Any]], dict[str, Any]] | None
    in_memory: bool
    pool: str
    use_gpu: bool
    start_method: str | None
    verbose: int

    @classmethod
    def of(
        cls,
        estimator: EstimatorParams,
        train_rows: int,
        val_rows: int,
        metadata: Mapping[str, object],
        dataset_idx: int | None,
        marks: Sequence[str],
    ) -> TrainingData:
        """Return the data with which an estimator trains.

        Args:
            estimator: its Params count.
            train_rows, val_rows, metadata: what was found in the data.
            dataset_idx: number of the data in the store.
            marks: of the folders for training and, if there is one, for validation.
        """
        get = estimator.value
        store = get("store")
        train = Part(
            store.get_train_data_path(dataset_idx),
            train_rows,
            get("batch_size"),
            get("train_steps_per_epoch"),
            get("train_reader_num_workers"),
            marks[0],
        )
        val = None
        if get("validation"):
            val = replace(
                train,
                path=store.get_val_data_path(dataset_idx),
                rows=val_rows,
                batch_size=get("val_batch_size") or train.batch_size,
                steps=get("validation_steps_per_epoch"),
                num_threads=get("val_reader_num_workers"),
                mark=marks[1],
            )
        return cls(
            module=get("data_module"),
            train=train,
            val=val,
            features=get("feature_cols"),
            labels=get("label_cols"),
            weights=get("sample_weight_col"),
            numbers=get("continuous_cols"),
            categories=get("categorical_cols"),
            metadata=metadata,
            storage_options=getattr(store, "storage_options", None),
            shuffle=get("shuffle"),
            seed=get("random_seed"),
            transform=get("transformation_fn"),
            in_memory=get("inmemory_cache_all"),
            pool=get("reader_pool_type"),
            use_gpu=get("use_gpu"),
            start_method=get("mp_start_method"),
            verbose=get("verbose"),
        )

    def __getstate__(self) -> dict[str, Any]:
        # Ranks need no types of Spark, for which they would have to load it.
        metadata = {
            name: {key: value for key, value in column.items() if key != "spark_data_type"}
            for name, column in self.metadata.items()
        }
        return {**vars(self), "metadata": metadata}

    def columns(self) -> list[str]:
        """Return the columns that are read."""
        found = [*self.features, *self.labels, *([self.weights] if self.weights else [])]
        return list(dict.fromkeys(found))

    def rest_of_epoch(self, size: int, stretches: Stretches, whole_batches: bool) -> EpochRest:
        """Return what is left of an epoch of training.

        Args:
            size: number of ranks.
            stretches: of the epoch that have ended.
            whole_batches: leave out the rows that do not fill a batch on all ranks. They are left
                out in any case if the number of steps is given.
        """
        part = self.train
        drop_last = whole_batches or part.steps is not None
        division, whole = (
            division_after(done, part.rows, size, part.batch_size, drop_last)
            for done in (stretches, ())
        )
        if part.steps is None:
            return EpochRest(division, division.steps, stretches, whole.steps - division.steps)
        done = sum(steps for _, steps in stretches)
        return EpochRest(division, max(0, part.steps - done), stretches, done)

    def module_for(
        self, rank: int, size: int, epochs: range, rest: EpochRest, framework: object = None
    ) -> DataModule:
        """Return the data module of a rank, a context.

        Args:
            rank, size: whose share.
            epochs: that are trained.
            rest: what is left of the first of them, and all of the others.
            framework: its ``make_dataset``, if it has one, is given to the module.
        """
        val = self.val or self.train
        more = {"make_dataset": each} if (each := getattr(framework, "make_dataset", None)) else {}
        return self.module(
            train_dir=self.train.path,
            val_dir=val.path,
            num_train_epochs=len(epochs),
            first_epoch=epochs.start,
            has_val=self.val is not None,
            train_batch_size=self.train.batch_size,
            val_batch_size=val.batch_size,
            shuffle=self.shuffle,
            transform_fn=self._transform_fn(),
            inmemory_cache_all=self.in_memory,
            cur_shard=rank,
            shard_count=size,
            schema_fields=self.columns(),
            storage_options=self.storage_options,
            steps_per_epoch_train=rest.steps,
            steps_per_epoch_val=val.steps_of(size),
            whole_batches=rest.division.drop_last,
            stretches=rest.stretches,
            steps_done=rest.steps_before,
            verbose=self.verbose,
            label_cols=self.labels,
            continuous_cols=self.numbers,
            categorical_cols=self.categories,
            random_seed=self.seed,
            reader_pool_type=self.pool,
            train_reader_worker_count=self.train.num_threads,
            val_reader_worker_count=val.num_threads,
            **more,
        )

    def begin(self) -> None:
        """Does what comes before all else in the process of a rank.

        Raises:
            ValueError: processes cannot start in this way here.
        """
        if self.start_method is not None:
            multiprocessing.set_start_method(self.start_method, force=True)

    def check_marks(self, rank: int) -> None:
        """Make sure that the folders hold what the estimator found there, once they are open.

        Args:
            rank: who looks, for messages.

        Raises:
            StartError: somebody has written other data into a folder.
        """
        for part in (self.train, self.val):
            if part is not None and part.mark:
                check_mark(part.path, self.storage_options, part.mark, rank)

    def dense(self, batch: Mapping[str, object], column: str) -> Any:
        """A column of a batch as numbers: (rows,) or (rows, n).

        Raises:
            UsageError: it is not in the batch, its arrays have different lengths, or it holds no
                numbers.
        """
        if column not in batch:
            raise UsageError(
                f"the batch has no column {column!r}, only {', '.join(batch)}; if there is a "
                "transformation_fn, it must return it"
            )
        values = batch[column]
        if isinstance(values, np.ndarray) and values.dtype.kind not in "biuf":
            raise UsageError(f"column {column!r} has arrays of different lengths, or no numbers")
        if self.transform is None and column in self._packed():
            return expanded(np.asarray(values), self._packed()[column])
        return values

    def label(self, batch: Mapping[str, object], column: str) -> Any:
        """A column of labels as numbers: integers and booleans are int64, whatever was written.

        Raises:
            UsageError: as of :meth:`dense`.
        """
        values = self.dense(batch, column)
        if isinstance(values, np.ndarray) and values.dtype.kind in "biu":
            return values.astype(np.int64)
        return values

    def _packed(self) -> dict[str, int]:
        """The columns that are written without their zeros, and the numbers in their rows."""
        return {
            name: int(column["shape"])
            for name, column in self.metadata.items()
            if column.get("intermediate_format") == CUSTOM_SPARSE
        }

    def _transform_fn(self) -> Any:
        """Return what is applied to each row: the user's function, which never sees packed rows."""
        packed = self._packed()
        if self.transform is None or not packed:
            return self.transform
        return _Expanding(self.transform, packed)


def expanded(packed: np.ndarray, width: int) -> np.ndarray:
    """Rows of numbers from rows that hold only their non-zeros.

    Args:
        packed: (rows, 1 + 2 · most): how many there are, their places, their values, zeros.
        width: numbers in a row.
    """
    rows = np.zeros((len(packed), width))
    for row, line in zip(rows, packed, strict=True):
        count = int(line[0])
        row[line[1 : 1 + count].astype(np.int64)] = line[1 + count : 1 + 2 * count]
    return rows


@dataclass(frozen=True)
class _Expanding:
    """Applies a function to rows whose packed columns it expands first."""

    function: Callable[[dict[str, Any]], dict[str, Any]]
    packed: Mapping[str, int]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        dense = {
            name: expanded(np.asarray([row[name]]), width)[0]
            for name, width in self.packed.items()
            if name in row
        }
        return self.function({**row, **dense})


def gpu_index(local_rank: int) -> int:
    """Which GPU of the host a rank takes: the one that Spark gives to its task, if it does."""
    by_local_rank = inherited_environment().get(_BY_LOCAL_RANK, "0") != "0"
    given = [] if by_local_rank else get_available_devices()
    return int(given[0]) if given else local_rank
