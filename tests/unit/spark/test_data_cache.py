"""Numbers of data sets, and which of them need not be written again."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from horovod.errors import UsageError
from horovod.spark.common.cache import DataCache, Prepared

if TYPE_CHECKING:
    from collections.abc import Iterator


class Frame:
    """Stands for a DataFrame."""


class Writer:
    """Notes which numbers were written."""

    def __init__(self) -> None:
        self.cache = DataCache()
        self.written: list[int] = []
        self.is_there = True

    def prepare(self, index: int) -> Prepared:
        self.written.append(index)
        return Prepared(f"token {index}", (len(self.written), 0, {}, 1.0))

    @contextmanager
    def using(self, frame: Frame, key: str = "") -> Iterator[int]:
        with self.cache.using(frame, key, self.prepare, lambda *_: self.is_there) as index:
            yield index


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_numbers_are_the_lowest_that_are_free(writer: Writer) -> None:
    frames = [Frame() for _ in range(3)]
    with writer.using(frames[0]) as first, writer.using(frames[1]) as second:
        assert (first, second) == (0, 1)
    with writer.using(frames[0]) as again:
        assert again == 0
    assert writer.written == [0, 1]
    with writer.using(frames[2]) as reclaimed:
        assert reclaimed == 0
    assert writer.written == [0, 1, 0]
    with writer.using(frames[1]) as kept:
        assert kept == 1
    assert writer.written == [0, 1, 0]


def test_other_arguments_are_other_data(writer: Writer) -> None:
    frame = Frame()
    with writer.using(frame, "a") as first, writer.using(frame, "b") as second:
        assert first != second


def test_an_equal_number_of_a_new_frame_is_not_taken_for_the_old(writer: Writer) -> None:
    for _ in range(3):
        frame = Frame()
        with writer.using(frame):
            pass
        del frame
    assert writer.written == [0, 0, 0]


def test_what_is_there_no_more_is_written_again(writer: Writer) -> None:
    frame = Frame()
    for _ in range(2):
        with writer.using(frame):
            pass
    writer.is_there = False
    with writer.using(frame):
        assert writer.cache.properties(0)[0] == 2
    assert writer.written == [0, 0]


def test_clearing_spares_numbers_in_use(writer: Writer) -> None:
    frame, other = Frame(), Frame()
    with writer.using(frame):
        writer.cache.clear()
        with writer.using(other) as index:
            assert index == 1
        with writer.using(frame) as again:
            assert again == 1
        assert writer.cache.properties(0) is not None
    writer.cache.clear()
    with pytest.raises(UsageError, match="no data set 0 was prepared"):
        writer.cache.properties(0)


def test_a_failed_preparation_frees_its_number(writer: Writer) -> None:
    frame = Frame()

    def fail(index: int) -> Prepared:
        raise OSError("disk full")

    with (
        pytest.raises(OSError, match="disk full"),
        writer.cache.using(frame, "", fail, lambda *_: True),
    ):
        pass
    with writer.using(Frame()) as index:
        assert index == 0


def test_whoever_wants_the_same_waits_for_it(writer: Writer) -> None:
    frame = Frame()
    begun, go_on = threading.Event(), threading.Event()
    prepare = writer.prepare

    def slowly(index: int) -> Prepared:
        begun.set()
        assert go_on.wait(30)
        return prepare(index)

    found: list[Any] = []

    def use() -> None:
        with writer.cache.using(frame, "", slowly, lambda *_: True) as index:
            found.append(writer.cache.properties(index))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    # Others are not held up.
    with writer.using(Frame()) as index:
        assert index == 1
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 3
    assert writer.written == [1, 0]
