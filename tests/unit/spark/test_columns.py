"""Arrays from columns of Arrow."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from horovod.errors import UsageError
from horovod.spark.data.columns import join, stack, to_array


def convert(values: list[Any], kind: Any = None, num_chunks: int = 1) -> np.ndarray:
    array = pa.array(values, kind)
    return to_array(pa.chunked_array([array] * num_chunks), "c")


@pytest.mark.parametrize(
    "kind", ["int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"]
)
def test_numbers_keep_their_type(kind: str) -> None:
    array = convert(np.array([1, 2, 3], kind).tolist(), getattr(pa, kind)(), num_chunks=2)
    assert array.dtype == kind
    assert array.tolist() == [1, 2, 3, 1, 2, 3]


def test_other_scalars() -> None:
    assert convert([True, False]).dtype == bool
    assert convert([decimal.Decimal("1.50")]).tolist() == [1.5]
    assert convert(["a", "b"]).tolist() == ["a", "b"]
    assert convert([b"a"]).tolist() == [b"a"]
    assert convert([datetime.datetime(2026, 1, 2)]).dtype.kind == "M"
    assert convert(["a", "b", "a"], pa.dictionary(pa.int8(), pa.string())).tolist() == list("aba")


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_lists_of_one_length_are_a_dimension(kind: Any) -> None:
    array = convert([[1, 2, 3], [4, 5, 6]], kind(pa.float32()), num_chunks=2)
    assert array.shape == (4, 3)
    assert array.dtype == np.float32
    assert array[3].tolist() == [4, 5, 6]


def test_lists_of_fixed_length_are_a_dimension() -> None:
    assert convert([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)).tolist() == [[1, 2], [3, 4]]


def test_a_slice_of_lists_holds_its_own_values() -> None:
    column = pa.chunked_array([pa.array([[0, 0], [1, 1], [2, 2], [3, 3]])]).slice(1, 2)
    assert to_array(column, "c").tolist() == [[1, 1], [2, 2]]


def test_nested_lists_are_dimensions() -> None:
    assert convert([[[1, 2], [3, 4], [5, 6]]] * 2).shape == (2, 3, 2)


def test_lists_of_several_lengths_are_objects() -> None:
    array = convert([[1, 2], [3]], num_chunks=2)
    assert array.dtype == object
    assert [each.tolist() for each in array] == [[1, 2], [3], [1, 2], [3]]


def test_lists_of_one_length_in_each_chunk_only() -> None:
    column = pa.chunked_array([pa.array([[1, 2], [3, 4]]), pa.array([[5], [6]])])
    assert [each.tolist() for each in to_array(column, "c")] == [[1, 2], [3, 4], [5], [6]]


def test_null_floats_are_nan() -> None:
    array = convert([1.0, None], pa.float32())
    assert array.dtype == np.float32
    assert np.isnan(array[1])


@pytest.mark.parametrize("values", [[1, None], ["a", None], [[1.0], None], [True, None]])
def test_other_nulls_are_refused(values: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"column 'c' has 1 nulls of type .*df\.na\.fill"):
        convert(values)


def test_structures_are_refused() -> None:
    with pytest.raises(UsageError, match=r"column 'c' is of type struct<.*vector_to_array"):
        convert([{"size": 3}])


def test_no_rows_make_an_empty_array() -> None:
    assert len(to_array(pa.chunked_array([], pa.int32()), "c")) == 0
    assert convert([], pa.list_(pa.int32())).shape == (0, 0)


def test_stacking_and_joining_keep_rows_of_any_shape() -> None:
    assert stack([np.float32(1), np.float32(2)]).dtype == np.float32
    assert stack([np.zeros(2), np.zeros(2)]).shape == (2, 2)
    assert stack([np.zeros(2), np.zeros(3)]).shape == (2,)
    assert join([np.zeros((2, 3)), np.zeros((1, 3))]).shape == (3, 3)
    assert join([np.zeros((2, 3)), np.zeros((1, 4))]).shape == (3,)
