"""What ranks make of the columns of a batch, whatever the framework."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from spark_files import data_in

from horovod.errors import UsageError
from horovod.spark.common.constants import CUSTOM_SPARSE
from horovod.spark.common.datamodule import ParquetDataModule

if TYPE_CHECKING:
    from pathlib import Path

PACKED = {"x": {"intermediate_format": CUSTOM_SPARSE, "shape": 4}}
ROWS = np.array([[1.0, 3.0, 2.5], [0.0, 0.0, 0.0]])
DENSE = [[0, 0, 0, 2.5], [0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_labels_that_are_integers_are_int64(dtype: str, tmp_path: Path) -> None:
    data = data_in(tmp_path, ParquetDataModule)
    label = data.label({"y": np.array([1, 0], dtype)}, "y")
    assert (label.dtype, label.tolist()) == (np.int64, [1, 0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_other_labels_and_features_stay(dtype: str, tmp_path: Path) -> None:
    data = data_in(tmp_path, ParquetDataModule)
    values = np.array([1, 0], dtype)
    assert data.label({"y": values}, "y").dtype == dtype
    assert data.dense({"x": values.astype(np.int16)}, "x").dtype == np.int16


@pytest.mark.parametrize("values", [["a", "b"], [np.datetime64(1, "D")] * 2, [b"a", b"b"]])
def test_columns_without_numbers_are_refused(values: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="column 'x' has arrays of different lengths, or no numb"):
        data_in(tmp_path, ParquetDataModule).dense({"x": np.array(values)}, "x")


def test_a_transformation_never_sees_packed_rows(tmp_path: Path) -> None:
    data = replace(data_in(tmp_path, ParquetDataModule), metadata=PACKED)
    assert data.dense({"x": ROWS}, "x").tolist() == DENSE
    data = replace(data, transform=lambda row: {"x": 2 * row["x"]})
    with data.module_for(0, 1, range(1), data.rest_of_epoch(1, (), True)) as module:
        found = module.transform_fn({"x": ROWS[0], "y": 1.0})
    assert found["x"].tolist() == [0, 0, 0, 5]
    # What it returns is not expanded a second time.
    assert data.dense({"x": found["x"].reshape(1, 4)}, "x").tolist() == [[0, 0, 0, 5]]


def test_what_is_left_of_an_epoch_is_the_same_in_all_counts(tmp_path: Path) -> None:
    data = data_in(tmp_path, ParquetDataModule)  # 64 rows in batches of 8
    rest = data.rest_of_epoch(3, [(2, 2)], whole_batches=False)
    assert (rest.division.rows, rest.steps, rest.steps_before) == (32, 2, 1)
    with data.module_for(0, 3, range(4, 5), rest) as module:
        assert (module.first_epoch, module.steps_per_epoch_train) == (4, 2)
        assert (module.stretches, module.steps_done) == ([(2, 2)], 1)
        assert [len(batch["x"]) for batch in module.train_data()] == [8, 2]


def test_steps_that_are_given_are_whole_batches_until_they_are_done(tmp_path: Path) -> None:
    data = data_in(tmp_path, ParquetDataModule)
    data = replace(data, train=replace(data.train, steps=10))
    assert data.rest_of_epoch(2, (), whole_batches=False).division.drop_last
    assert data.rest_of_epoch(2, [(4, 7)], whole_batches=False).steps == 3
    assert data.rest_of_epoch(2, [(4, 7), (3, 4)], whole_batches=False).steps == 0
