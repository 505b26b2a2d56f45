"""Writing to consoles that are slow, stuck or gone."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import pytest

from horovod.runner.output.console import Console
from horovod.runner.output.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 30.0


class Gate:
    """An outlet that takes one piece each time it is opened."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.opened = threading.Semaphore(0)
        self.error: OSError | None = None

    def close(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert self.opened.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            raise self.error
        self.taken.append(data)


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="utf-8") as stream:
        yield read_end, stream


def test_news_come_when_enough_was_written() -> None:
    news, gate = threading.Semaphore(0), Gate()
    writer = Writer(lambda: news.release())
    writer.put(gate, b"a" * 10)
    assert not writer.tell_below(0)
    assert not news.acquire(blocking=False)
    gate.opened.release()
    assert news.acquire(timeout=DEADLINE_S)
    assert writer.tell_below(0)
    assert (writer.pending, writer.written) == (0, 10)
    assert writer.close() == 0


def test_an_outlet_that_fails_takes_nothing_more_and_holds_up_no_other() -> None:
    news, full, good = threading.Semaphore(0), Gate(), Gate()
    full.error = OSError(28, "No space left on device")
    writer = Writer(lambda: news.release())
    for outlet in (full, good, full):
        writer.put(outlet, b"data")
    full.opened.release()
    good.opened.release()
    assert news.acquire(timeout=DEADLINE_S)
    assert writer.error_of(full) is full.error
    while not writer.tell_below(0):
        assert news.acquire(timeout=DEADLINE_S)
    writer.put(full, b"more")
    assert writer.pending == 0
    assert (full.taken, good.taken) == ([], [b"data"])
    assert writer.error_of(good) is None
    assert writer.close() == 0


def test_what_is_queued_meanwhile_is_written_at_once() -> None:
    news, gate = threading.Semaphore(0), Gate()
    writer = Writer(lambda: news.release())
    for number in range(100):
        writer.put(gate, b"%d\n" % number)
    assert not writer.tell_below(0)
    for _ in range(100):
        gate.opened.release()
    assert news.acquire(timeout=DEADLINE_S)
    assert b"".join(gate.taken) == b"".join(b"%d\n" % number for number in range(100))
    assert len(gate.taken) < 100
    writer.close()


def test_a_console_that_takes_nothing_is_given_up(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read_end, stream = pipe
    with Console(stream, None) as console:
        console.put("stdout", b"x" * 1_000_000)
        assert not console.wait(0.5)
        left = console.give_up()
        assert 0 < left <= 1_000_000
        console.put("stdout", b"more")
        assert console.wait(DEADLINE_S)
    os.close(read_end)


def test_nobody_waits_who_is_interrupted(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read_end, stream = pipe
    interrupts, write_end = os.pipe()
    os.write(write_end, b"\2")
    with Console(stream, None) as console:
        console.put("stdout", b"x" * 1_000_000)
        assert not console.wait(1000, interrupts)
        assert console.give_up() > 0
    for descriptor in (read_end, interrupts, write_end):
        os.close(descriptor)


def test_a_reader_that_leaves_is_an_error(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read_end, stream = pipe
    os.close(read_end)
    with Console(stream, io.StringIO()) as console:
        console.put("stdout", b"x")
        assert console.wait(DEADLINE_S)
        assert isinstance(console.error(), BrokenPipeError)


def test_stdout_and_stderr_of_one_pipe_keep_their_order(
    pipe: tuple[int, io.TextIOWrapper],
) -> None:
    read_end, stream = pipe
    with open(os.dup(stream.fileno()), "w", encoding="utf-8") as other:
        with Console(stream, other) as console:
            for number in range(200):
                console.put(("stdout", "stderr")[number % 2], b"%d\n" % number)
        assert os.read(read_end, 65536) == b"".join(b"%d\n" % number for number in range(200))
    os.close(read_end)


def test_what_the_program_printed_before_comes_first(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read_end, stream = pipe
    print("before", file=stream)
    with Console(stream, None) as console:
        console.put("stdout", "é\n".encode())
    assert os.read(read_end, 100) == "before\né\n".encode()
    os.close(read_end)


def test_a_descriptor_that_does_not_block_is_waited_for(
    pipe: tuple[int, io.TextIOWrapper],
) -> None:
    read_end, stream = pipe
    os.set_blocking(stream.fileno(), False)
    with Console(stream, None) as console:
        console.put("stdout", b"x" * 300_000)
        with open(read_end, "rb") as reader:
            assert len(reader.read(300_000)) == 300_000


def test_a_launcher_without_stdout_and_stderr() -> None:
    with Console(None, None) as console:
        console.put("stdout", b"x")
        console.say("hello")
        assert console.colored({"TERM": "xterm"}) == frozenset()
