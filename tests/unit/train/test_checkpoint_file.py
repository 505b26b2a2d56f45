"""Commits in files: what they can hold, and what shows that one is not whole."""

from __future__ import annotations

import io
import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest

from horovod._train.elastic.checkpoint import file
from horovod._train.elastic.checkpoint.data import NoDataError, Packed


def written(**values: Any) -> bytes:
    packed = Packed()
    stream = io.BytesIO()
    plain = {name: packed.pack(value) for name, value in values.items()}
    file.write(stream, {"plain": plain}, packed.buffers)
    return stream.getvalue()


def read(content: bytes) -> dict[str, Any]:
    return file.read(io.BytesIO(content), len(content))["plain"]


VALUES = [
    None,
    True,
    2**70,
    -0.1,
    float("inf"),
    "ä\ud800\n",
    b"\x00\xff",
    bytearray(b"a"),
    1 - 2j,
    range(2, 9, 3),
    [],
    [1, [2.0, None]],
    (1, (2,)),
    {1: "one", (2, 3): {"x": [()]}},
    {"tuple": [1]},
    {1, 2},
    frozenset({"a"}),
    OrderedDict(b=1, a=2),
    Counter("aab"),
    deque([1, 2], maxlen=2),
    random.Random(1).getstate(),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_data_are_read_as_they_were(value: Any) -> None:
    found = read(written(value=value))["value"]
    assert (found, type(found)) == (value, type(value))
    if isinstance(value, deque):
        assert found.maxlen == value.maxlen


def test_a_dictionary_with_defaults_stays_one() -> None:
    found = read(written(value=defaultdict(list, {"a": [1]})))["value"]
    assert found["b"] == []
    assert found == {"a": [1], "b": []}


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 3), np.int8),
        np.array(1.5, np.float16),
        np.array(["a", "bc"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.arange(3, dtype=">i4"),
        np.array([True]),
        np.float32(1.5),
        np.int64(3),
    ],
    ids=repr,
)
def test_arrays_of_numpy_are_read_as_they_were(array: Any) -> None:
    found = read(written(value=[array]))["value"][0]
    assert (type(found), found.dtype, found.shape) == (type(array), array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    if isinstance(found, np.ndarray):
        assert found.flags.writeable


class Own:
    """Of the user."""


@pytest.mark.parametrize(
    "value",
    [Own(), {"a": [Own()]}, Own, print, lambda: 0, defaultdict(Own), np.array([Own()])],
    ids=["object", "in a list", "class", "built-in", "function", "defaultdict", "array"],
)
def test_what_is_no_data_is_refused(value: Any) -> None:
    with pytest.raises(NoDataError, match="no data"):
        Packed().pack(value)


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NoDataError, match="nested"):
        Packed().pack(value)


WHOLE = written(weights=np.arange(100.0), epoch=3)


def test_every_missing_end_shows() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(file.IncompleteError):
            read(WHOLE[:length])


def test_every_changed_byte_shows() -> None:
    for place in range(len(b"horovod commit 1\n"), len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[place] ^= 0x10
        with pytest.raises(file.IncompleteError):
            read(bytes(damaged))


def test_bytes_behind_the_end_show() -> None:
    with pytest.raises(file.IncompleteError):
        read(WHOLE + b"\0")


def test_a_later_version_is_no_damage() -> None:
    with pytest.raises(file.UnreadableError, match="horovod commit 2"):
        read(WHOLE.replace(b"commit 1", b"commit 2"))


@pytest.mark.parametrize(
    "packed",
    [
        {"os.system": ["true"]},
        {"numpy": [0, ["O", [1], False]]},
        {"numpy": [9, ["<f8", [1], False]]},
        {"numpy": [0, ["<f8", [2], False]]},
        {"numpy": [0, ["<f8", [-1], False]]},
        {"numpy": [0, ["<f4", [1], False]]},
        {"numpy": [0, ["<f8", 1, False]]},
        {"numpy": [0, [[["a", "<f8"]], [1], False]]},
        {"set": [[]]},
        {"defaultdict": ["Own", []]},
        {"a": 1, "b": 2},
    ],
    ids=json.dumps,
)
def test_a_file_of_somebody_else_makes_no_other_objects(packed: Any) -> None:
    stream = io.BytesIO()
    file.write(stream, {"plain": {"value": packed}}, [bytes(8)])
    with pytest.raises(file.UnreadableError):
        read(stream.getvalue())
