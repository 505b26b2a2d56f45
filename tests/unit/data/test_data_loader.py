"""Loaders that read ahead: the same batches as without a thread, errors included."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.data_loader_base import BaseDataLoader as SameBase

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 30.0


class Numbers(BaseDataLoader):
    """Epoch e gives 100 e, 100 e + 1, …; notes on which threads things happen."""

    def __init__(self, length: int, fail_at: int | None = None) -> None:
        self.length = length
        self.fail_at = fail_at
        self.epochs_begun = 0
        self.epochs_ended = 0
        self.num_read = 0
        self.readers: set[str] = set()
        self.processors: set[str] = set()

    def __len__(self) -> int:
        return self.length

    def _iterate(self) -> Iterator[int]:
        epoch = self.epochs_begun
        self.epochs_begun += 1
        self.readers.add(threading.current_thread().name)
        try:
            for index in range(self.length):
                if index == self.fail_at:
                    raise KeyError(f"batch {index} of epoch {epoch}")
                self.num_read += 1
                yield 100 * epoch + index
        finally:
            self.epochs_ended += 1

    def _process_batch(self, batch: int) -> int:
        self.processors.add(threading.current_thread().name)
        return -batch


class Ahead(AsyncDataLoaderMixin, Numbers):
    pass


@pytest.fixture
def make() -> Iterator[Any]:
    """Makes loaders, and ends their threads after the test."""
    made: list[Ahead] = []

    def make_loader(*args: Any, **options: Any) -> Ahead:
        made.append(Ahead(*args, **options))
        return made[-1]

    before = set(threading.enumerate())
    yield make_loader
    for loader in made:
        loader.close_async_loader()
    assert set(threading.enumerate()) <= before


def test_a_loader_gives_what_it_iterates_over() -> None:
    loader = Numbers(3)
    assert len(loader) == 3
    assert list(loader) == [0, -1, -2]
    assert list(loader) == [-100, -101, -102]
    assert SameBase is BaseDataLoader
    for call in (BaseDataLoader().__len__, BaseDataLoader()._iterate):
        with pytest.raises(NotImplementedError):
            call()


@pytest.mark.parametrize("size", [0, 1, 2, 64])
def test_several_epochs_are_those_of_the_loader(make: Any, size: int) -> None:
    loader = make(size, length=3)
    assert len(loader) == 3
    assert [list(loader) for _ in range(4)] == [
        [-100 * epoch - index for index in range(3)] for epoch in range(4)
    ]


def test_batches_are_read_on_a_thread_and_processed_where_they_are_consumed(make: Any) -> None:
    here = threading.current_thread().name
    ahead, plain = make(4, length=3), make(0, length=3)
    assert list(ahead) == list(plain)
    assert ahead.processors == plain.processors == plain.readers == {here}
    assert len(ahead.readers) == 1
    assert here not in ahead.readers


def test_the_thread_reads_ahead_as_far_as_the_queue_holds(make: Any) -> None:
    """Also into the next epoch; the end of an epoch takes a place of its own."""
    loader = make(4, length=3)
    epoch = iter(loader)
    assert [next(epoch) for _ in range(3)] == [0, -1, -2]
    wait_until(lambda: loader.num_read == 3 + 3)
    assert list(epoch) == []
    assert list(loader) == [-100, -101, -102]
    assert loader.epochs_begun >= 2


def wait_until(condition: Any) -> None:
    """Looks again and again, as nobody tells when a thread has got somewhere."""
    done = threading.Event()
    for _ in range(int(DEADLINE_S / 0.005)):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it never came true")


@pytest.mark.parametrize("size", [0, 1, 8])
def test_who_leaves_an_epoch_early_gets_a_new_one(make: Any, size: int) -> None:
    loader = make(size, length=50)
    for batch in loader:
        if batch == -3:
            break
    first, *_ = epoch = list(loader)
    assert first == -100 * (-first // 100)
    assert first < 0
    assert epoch == [first - index for index in range(50)]
    # The generator of the epoch that was left has been closed.
    assert loader.epochs_ended >= 2


@pytest.mark.parametrize("size", [0, 1, 64])
def test_an_error_comes_behind_the_batches_that_were_read(make: Any, size: int) -> None:
    loader = make(size, length=5, fail_at=2)
    seen: list[int] = []
    with pytest.raises(KeyError, match="batch 2 of epoch 0") as caught:
        seen.extend(batch for batch in loader)
    assert seen == [0, -1]
    assert "_iterate" in [entry.name for entry in caught.traceback]
    # The next epoch is tried anew.
    with pytest.raises(KeyError, match="batch 2 of epoch 1"):
        list(loader)
    loader.fail_at = None
    epochs = [read_or_none(loader) for _ in range(3)]
    assert len(epochs[-1] or ()) == 5


def read_or_none(loader: Ahead) -> list[int] | None:
    """An epoch; None if the thread had failed in it before the fault was mended."""
    try:
        return list(loader)
    except KeyError:
        return None


def test_a_thread_that_failed_waits_until_somebody_has_seen_it(make: Any) -> None:
    loader = make(64, length=1, fail_at=0)
    with pytest.raises(KeyError):
        list(loader)
    wait_until(lambda: loader.epochs_begun == 2)
    assert loader.epochs_begun == 2


def test_a_second_iteration_ends_the_first(make: Any) -> None:
    loader = make(2, length=5)
    first = iter(loader)
    assert next(first) == 0
    second = iter(loader)
    assert next(second) % 100 == 0
    with pytest.raises(RuntimeError, match="another iteration over the loader has begun"):
        next(first)
    assert len(list(second)) == 4


def test_closing_ends_the_thread_and_a_later_iteration_starts_anew(make: Any) -> None:
    before = set(threading.enumerate())
    loader = make(1, length=100)
    first = iter(loader)
    assert next(first) == 0
    assert len(set(threading.enumerate()) - before) == 1
    loader.close_async_loader()
    loader.close_async_loader()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(first)
    assert len(list(loader)) == 100


def test_closing_wakes_who_waits_for_a_batch(make: Any) -> None:
    hold, waiting = threading.Event(), threading.Event()

    class Slow(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            waiting.set()
            hold.wait(DEADLINE_S)
            yield from ()

    loader = Slow()
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except RuntimeError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waiting.wait(DEADLINE_S)
    closer = threading.Thread(target=loader.close_async_loader)
    closer.start()
    consumer.join(DEADLINE_S)
    assert "closed" in str(caught[0])
    hold.set()
    closer.join(DEADLINE_S)


def test_arguments_go_on_to_the_loader_and_are_checked(make: Any) -> None:
    loader = make(8, False, 3, fail_at=2)
    assert (loader.length, loader.fail_at, loader.async_loader_queue_size) == (3, 2, 8)
    with pytest.raises(ValueError, match="async_loader_queue_size=-1 is negative"):
        Ahead(-1, length=3)


def test_debugging_tells_how_long_batches_took(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    list(make(2, True, length=3))
    assert "Ahead: epoch 0: 3 batches, waited 0." in capsys.readouterr().err


def test_batches_may_be_none(make: Any) -> None:
    class Nothing(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[None]:
            yield from [None, None]

    loader = Nothing()
    assert [batch for batch in loader] == [None, None]
    loader.close_async_loader()
