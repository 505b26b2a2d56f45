"""Writing DataFrames for the ranks: splits, vectors, metadata, and the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml.linalg import DenseVector, SparseVector, Vectors, VectorUDT
from pyspark.sql import types as T

from horovod.errors import UsageError
from horovod.spark.common import preparation
from horovod.spark.common.constants import ARRAY, CUSTOM_SPARSE, NOCHANGE
from horovod.spark.common.store import FilesystemStore, LocalStore
from horovod.spark.common.util import (
    check_validation,
    clear_training_cache,
    get_dataset_properties,
    get_simple_meta_from_parquet,
    get_spark_df_output_schema,
    prepare_data,
)
from horovod.spark.data.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilesystemStore]:
    clear_training_cache()
    yield FilesystemStore(str(tmp_path))
    clear_training_cache()


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    """Numbers of several types, weights, and what decides on validation in several ways."""
    rows = [
        (i, float(i), [float(i), 1.0], 0.5, i % 3 == 0, i % 4 - 1, None if i % 5 else 1)
        for i in range(NUM_ROWS)
    ]
    schema = (
        "x int, y float, a array<float>, w double, in_third boolean, in_fourth int, in_fifth int"
    )
    return spark.createDataFrame(rows, schema)


@pytest.fixture(scope="module")
def vectors(spark: Any) -> Any:
    rows = [(i, float(i), Vectors.dense([i, 1.0]), sparse(i), mixed(i)) for i in range(NUM_ROWS)]
    schema = T.StructType(
        [
            T.StructField("x", T.IntegerType()),
            T.StructField("y", T.FloatType()),
            T.StructField("dense", VectorUDT()),
            T.StructField("sparse", VectorUDT()),
            T.StructField("mixed", VectorUDT()),
        ]
    )
    return spark.createDataFrame(rows, schema)


def sparse(i: int) -> SparseVector:
    return Vectors.sparse(5, {i % 5: float(i + 1), 4: 2.0} if i % 2 else {i % 5: float(i + 1)})


def mixed(i: int) -> Any:
    return Vectors.dense([0.0, i]) if i % 2 else Vectors.sparse(2, {1: float(i)})


def read(store: FilesystemStore, path: str, columns: list[str]) -> dict[str, np.ndarray]:
    """All rows that a rank would read, sorted by the first column."""
    url = store.get_full_path(path)
    with ParquetReader(url, columns=columns, batch_size=NUM_ROWS, shuffle=False) as reader:
        batch = next(iter(reader.batches(0)))
    order = np.argsort(batch[columns[0]])
    return {name: array[order] for name, array in batch.items()}


def prepared(store: FilesystemStore, df: Any, **options: Any) -> Any:
    columns = {"label_columns": ["y"], "feature_columns": ["x"]}
    options = {**columns, "partitions_per_process": 1, **options}
    return prepare_data(2, store, df, **options)


def test_a_frame_is_written_for_all_ranks(frame: Any, store: FilesystemStore) -> None:
    options = {"feature_columns": ["x", "a"], "sample_weight_col": "w"}
    with prepared(store, frame, partitions_per_process=10, **options) as index:
        assert index == 0
        train_rows, val_rows, metadata, row_bytes = get_dataset_properties(index)
    assert (train_rows, val_rows) == (NUM_ROWS, 0)
    assert row_bytes > 0
    plain = {
        "is_sparse_vector_only": False,
        "shape": None,
        "intermediate_format": NOCHANGE,
        "max_size": None,
    }
    assert metadata == {
        "x": {"spark_data_type": T.IntegerType, **plain},
        "y": {"spark_data_type": T.FloatType, **plain},
        "a": {
            "spark_data_type": DenseVector,
            **plain,
            "type": T.ArrayType(T.FloatType()).json(),
        },
        "w": {"spark_data_type": T.DoubleType, **plain},
    }
    path = store.get_train_data_path(0)
    files = [each for each in store.fs.ls(store.get_localized_path(path)) if "/part-" in each]
    assert len(files) == 20
    found = read(store, path, ["x", "y", "a", "w"])
    assert found["x"].dtype == np.int32
    assert found["y"].dtype == found["a"].dtype == np.float32
    assert found["x"].tolist() == found["y"].tolist() == list(range(NUM_ROWS))
    assert found["a"].shape == (NUM_ROWS, 2)
    assert not store.exists(store.get_val_data_path(0))


def test_all_other_columns_are_features(frame: Any, store: FilesystemStore) -> None:
    options = {"feature_columns": None, "validation": "in_third", "sample_weight_col": "w"}
    with prepared(store, frame, **options) as index:
        columns = set(get_dataset_properties(index)[2])
    assert columns == {"x", "y", "a", "w", "in_fourth", "in_fifth"}


@pytest.mark.parametrize(
    ("column", "chosen"),
    [
        ("in_third", [i for i in range(NUM_ROWS) if i % 3 == 0]),
        # -1, 0, 1, 2
        ("in_fourth", [i for i in range(NUM_ROWS) if i % 4 > 1]),
        ("in_fifth", [i for i in range(NUM_ROWS) if i % 5 == 0]),
    ],
)
def test_a_column_decides_on_validation(
    frame: Any, store: FilesystemStore, column: str, chosen: list[int]
) -> None:
    with prepared(store, frame, validation=column) as index:
        train_rows, val_rows, metadata, _ = get_dataset_properties(index)
    assert column not in metadata
    assert (train_rows, val_rows) == (NUM_ROWS - len(chosen), len(chosen))
    assert read(store, store.get_val_data_path(index), ["x"])["x"].tolist() == chosen
    rest = sorted(set(range(NUM_ROWS)) - set(chosen))
    assert read(store, store.get_train_data_path(index), ["x"])["x"].tolist() == rest


def test_a_share_is_drawn_for_validation(frame: Any, store: FilesystemStore) -> None:
    with prepared(store, frame, validation=0.5) as index:
        train_rows, val_rows, _, _ = get_dataset_properties(index)
    assert train_rows + val_rows == NUM_ROWS
    assert 10 < val_rows < 50
    numbers = [
        number
        for path in (store.get_train_data_path(index), store.get_val_data_path(index))
        for number in read(store, path, ["x"])["x"].tolist()
    ]
    assert sorted(numbers) == list(range(NUM_ROWS))


def test_vectors_become_arrays(vectors: Any, store: FilesystemStore) -> None:
    options = {"feature_columns": ["x", "dense", "sparse", "mixed"]}
    with prepared(store, vectors, **options) as index:
        metadata = get_dataset_properties(index)[2]
    kinds = {name: each["spark_data_type"] for name, each in metadata.items()}
    # Vectors do not change what others are.
    assert (kinds["x"], kinds["y"]) == (T.IntegerType, T.FloatType)
    assert {kinds[name] for name in ("dense", "sparse", "mixed")} == {DenseVector}
    assert all(each["intermediate_format"] == NOCHANGE for each in metadata.values())
    found = read(store, store.get_train_data_path(index), list(metadata))
    for i in range(NUM_ROWS):
        assert found["dense"][i].tolist() == [i, 1.0]
        assert found["sparse"][i].tolist() == sparse(i).toArray().tolist()
        assert found["mixed"][i].tolist() == [0.0, i]


def test_sparse_vectors_are_compressed(vectors: Any, store: FilesystemStore) -> None:
    options = {"feature_columns": ["x", "dense", "sparse", "mixed"], "compress_sparse": True}
    with prepared(store, vectors, **options) as index:
        metadata = get_dataset_properties(index)[2]
    dense = {
        "spark_data_type": DenseVector,
        "is_sparse_vector_only": False,
        "shape": 2,
        "intermediate_format": ARRAY,
        "max_size": 2,
    }
    scalar = {**dense, "shape": 1, "intermediate_format": NOCHANGE, "max_size": 1}
    assert metadata == {
        "x": {**scalar, "spark_data_type": T.IntegerType},
        "y": {**scalar, "spark_data_type": T.FloatType},
        "dense": dense,
        "mixed": dense,
        "sparse": {
            "spark_data_type": SparseVector,
            "is_sparse_vector_only": True,
            "shape": 5,
            "intermediate_format": CUSTOM_SPARSE,
            "max_size": 2,
        },
    }
    found = read(store, store.get_train_data_path(index), list(metadata))["sparse"]
    assert found.shape == (NUM_ROWS, 5)
    assert found[0].tolist() == [1, 0, 1.0, 0, 0]
    assert found[1].tolist() == [2, 1, 4, 2.0, 2.0]
    # Whoever finds the files later knows it, too.
    later = get_simple_meta_from_parquet(store, None, None, dataset_idx=index)
    assert later[2] == metadata


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([Vectors.dense([1.0]), Vectors.dense([1.0, 2.0])], "between 1 and 2 numbers"),
        ([Vectors.dense([1.0]), None], "has 1 nulls"),
    ],
)
def test_vectors_of_no_one_shape_are_refused(
    spark: Any, store: FilesystemStore, values: list[Any], message: str
) -> None:
    schema = T.StructType([T.StructField("y", T.FloatType()), T.StructField("x", VectorUDT())])
    df = spark.createDataFrame([(1.0, each) for each in values], schema)
    with (
        pytest.raises(UsageError, match=rf"column 'x'.*{message}|{message}.*column 'x'"),
        prepared(store, df, compress_sparse=True),
    ):
        pass


def test_numbers_of_data_sets_are_used_again(frame: Any, store: FilesystemStore) -> None:
    other = frame.limit(50)
    with prepared(store, frame) as first:
        with prepared(store, other) as second:
            assert (first, second) == (0, 1)
            assert get_dataset_properties(0)[0] == NUM_ROWS
            assert get_dataset_properties(1)[0] == 50
        with prepared(store, frame) as again:
            assert again == 0
    with prepared(store, frame.limit(40)) as reclaimed:
        assert reclaimed == 0
        assert get_dataset_properties(0)[0] == 40


def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are written from now on."""
    written: list[str] = []
    write = preparation._Writing._write

    def counted(self: Any, df: Any, share: float, path: str, *args: Any) -> Any:
        written.append(path)
        return write(self, df, share, path, *args)

    monkeypatch.setattr(preparation._Writing, "_write", counted)
    return written


def test_what_was_written_is_not_written_again(
    frame: Any, store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = writes(monkeypatch)
    for _ in range(2):
        with prepared(store, frame) as index:
            assert index == 0
    assert len(written) == 1
    # Other columns are other data.
    with prepared(store, frame, feature_columns=["a"]) as index:
        assert set(get_dataset_properties(index)[2]) == {"a", "y"}
    assert len(written) == 2
    clear_training_cache()
    with prepared(store, frame, feature_columns=["a"]):
        pass
    assert len(written) == 3


def test_what_others_have_changed_is_written_again(
    frame: Any, store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = writes(monkeypatch)
    with prepared(store, frame) as index:
        path = store.get_train_data_path(index)
    frame.limit(5).repartition(1).write.mode("overwrite").parquet(path)
    assert get_simple_meta_from_parquet(store, ["y"], ["x"], dataset_idx=index)[0] == 5
    with prepared(store, frame) as index:
        assert get_dataset_properties(index)[0] == NUM_ROWS
    assert len(written) == 2


def test_a_data_set_that_could_not_be_written_is_tried_again(
    frame: Any, store: FilesystemStore
) -> None:
    with (
        pytest.raises(UsageError, match="there are no rows"),
        prepared(store, frame.filter("x < 0")),
    ):
        pass
    with pytest.raises(UsageError, match="no data set 0"):
        get_dataset_properties(0)
    with prepared(store, frame) as index:
        assert index == 0


def test_validation_needs_rows(frame: Any, store: FilesystemStore) -> None:
    df = frame.filter("not in_third")
    with (
        pytest.raises(UsageError, match=r"intermediate_val_data\.0: there are no"),
        prepared(store, df, validation="in_third"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 1.0}, "at least 0 and below 1"),
        ({"validation": -0.1}, "at least 0 and below 1"),
        ({"validation": "z"}, "no validation column 'z'"),
        ({"validation": "a"}, "is of type array<float>"),
        ({"validation": 1}, "give a share as a float"),
        ({"label_columns": []}, "label_columns is empty"),
        ({"label_columns": ["z"]}, r"no columns \['z'\]"),
        ({"feature_columns": ["x", "z"]}, r"no columns \['z'\]"),
        ({"partitions_per_process": 0}, "partitions_per_process is 0"),
    ],
)
def test_wrong_arguments_are_refused(
    frame: Any, store: FilesystemStore, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message), prepared(store, frame, **options):
        pass


def test_validation_is_checked_alone(frame: Any) -> None:
    for valid in (None, 0.0, 0.5, "in_third", "in_fourth"):
        check_validation(valid, frame)
    check_validation("any")
    with pytest.raises(UsageError, match="num_processes is 0"):
        prepare_data(0, None, frame, ["y"], ["x"]).__enter__()  # type: ignore[arg-type]


def test_data_of_others_are_found(frame: Any, store: FilesystemStore) -> None:
    frame.write.parquet(store.get_train_data_path())
    train_rows, val_rows, metadata, _ = get_simple_meta_from_parquet(store, ["y"], ["x"], "w")
    assert (train_rows, val_rows) == (NUM_ROWS, 0)
    assert list(metadata) == ["y", "x", "w"]
    frame.limit(7).write.parquet(store.get_val_data_path())
    assert get_simple_meta_from_parquet(store, ["y"], None)[1] == 7
    with pytest.raises(UsageError, match=r"no columns \['z'\]"):
        get_simple_meta_from_parquet(store, ["z"], ["x"])


def test_the_schema_of_outputs_follows_the_labels(vectors: Any) -> None:
    metadata = {
        "x": {"spark_data_type": T.FloatType},
        "dense": {"spark_data_type": DenseVector},
        "sparse": {"spark_data_type": SparseVector},
    }
    names = [f"{name}_out" for name in metadata]
    schema = get_spark_df_output_schema(vectors.schema, list(metadata), names, metadata)
    assert schema.fields[:5] == vectors.schema.fields
    assert schema.fields[5:] == [
        T.StructField("x_out", T.FloatType(), True),
        T.StructField("dense_out", VectorUDT(), True),
        T.StructField("sparse_out", VectorUDT(), True),
    ]
    with pytest.raises(UsageError, match="1 output columns for 2 labels"):
        get_spark_df_output_schema(vectors.schema, ["x", "dense"], ["a"], metadata)


def test_files_must_appear_on_databricks(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_text(store.prefix_path + "/a", "")
    monkeypatch.setenv("DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS", "0.01")
    monkeypatch.setenv("DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS", "0.001")
    preparation.wait_for_files(store, [store.prefix_path + "/a"])
    message = r"Timeout while waiting for all parquet-store files to appear.* 1 of 2 are missing"
    with pytest.raises(RuntimeError, match=message):
        preparation.wait_for_files(store, [store.prefix_path + f"/{name}" for name in "ab"])


def test_databricks_is_waited_for(
    frame: Any, store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")
    waited: list[int] = []
    monkeypatch.setattr(preparation, "wait_for_files", lambda _, paths: waited.append(len(paths)))
    with prepared(store, frame):
        pass
    assert waited == [2]
    with prepared(LocalStore(f"{store.prefix_path}/local"), frame):
        pass
    assert waited == [2]
