"""What a rank tells of where it is."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import horovod
from horovod import _native
from horovod._native import EngineOptions, make_world
from horovod._rank.reports import position
from horovod._rank.reports.position import PositionWatch, StackDump, current_stacks, current_threads
from horovod._train.call_site import call_site
from horovod.errors import StalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 60.0


def line_after(frames_up: int = 1) -> str:
    """``file:line`` of the line behind that of the caller."""
    frame = inspect.stack()[frames_up]
    return f"{frame.filename}:{frame.lineno + 1}"


@contextmanager
def thread_in(function: Callable[[threading.Event, threading.Event], None]) -> Iterator[None]:
    """A thread that calls the function, which tells by the first event that it is there."""
    there, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=function, args=(there, end), name="loader")
    thread.start()
    assert there.wait(TIMEOUT_S)
    yield
    end.set()
    thread.join(TIMEOUT_S)


def wait_here(there: threading.Event, end: threading.Event) -> None:
    there.set()
    assert end.wait(TIMEOUT_S)


def sections(stacks: str) -> dict[str, list[str]]:
    """By thread the lines of its frames."""
    found: dict[str, list[str]] = {}
    for line in stacks.splitlines():
        if line.startswith(" "):
            list(found.values())[-1].append(line)
        else:
            found[line.rstrip(":")] = []
    return found


def stacks_by_a_thread() -> str:
    """What a watch would tell."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(current_stacks()))
    thread.start()
    thread.join(TIMEOUT_S)
    return found[0]


def test_the_main_thread_comes_first_and_the_watch_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Libraries that other tests of this process have imported keep threads.
    monkeypatch.setattr(position, "_MOST_THREADS", threading.active_count() + 100)
    with thread_in(wait_here):
        stacks = sections(stacks_by_a_thread())
    assert next(iter(stacks)) == "MainThread"
    assert any("in stacks_by_a_thread" in line for line in stacks["MainThread"])
    assert any(f"{__file__}:" in line and "in wait_here" in line for line in stacks["loader"])
    assert not any("current_stacks" in line for lines in stacks.values() for line in lines)


def test_of_a_deep_stack_both_ends_are_told() -> None:
    def descend(depth: int) -> str:
        return descend(depth - 1) if depth else stacks_by_a_thread()

    frames = sections(descend(100))["MainThread"]
    assert len(frames) == 17
    assert any("in descend" in line for line in frames[:8])
    assert "frames" in frames[8]
    assert not any("in descend" in line for line in frames[9:])


def idle_threads() -> dict[str, bool]:
    """By name of the thread, what a watch would tell of it."""
    found: list[tuple[int, bool, int, bool]] = []
    thread = threading.Thread(target=lambda: found.extend(current_threads()))
    thread.start()
    thread.join(TIMEOUT_S)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {names[ident]: idle for ident, idle, _, _ in found if ident in names}


def sleep_here(there: threading.Event, end: threading.Event) -> None:
    gate = threading.Lock()
    gate.acquire()
    there.set()
    while not end.is_set():
        gate.acquire(timeout=0.01)  # in C, called from here: it may yet do anything


def test_a_thread_that_waits_for_work_is_idle() -> None:
    with thread_in(wait_here), ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(int).result()
        idle = idle_threads()
    assert idle["loader"]
    assert idle["pool_0"]


def test_a_thread_that_is_elsewhere_is_not_idle() -> None:
    with thread_in(sleep_here):
        assert not idle_threads()["loader"]


def position_of_a_thread_in(folder: str) -> tuple[bool, bool]:
    """Return whether a thread that waits in a file of this folder is idle, and in a framework."""
    source = compile(
        "def sleep(there, wait): there.set(); wait(True, 20.0)", f"{folder}/a.py", "exec"
    )
    namespace: dict[str, Callable[..., None]] = {}
    exec(source, namespace)
    there = threading.Event()
    gate = threading.Lock()
    gate.acquire()
    thread = threading.Thread(target=namespace["sleep"], args=(there, gate.acquire), name="other")
    thread.start()
    assert there.wait(TIMEOUT_S)
    told = position_of(thread)
    gate.release()
    thread.join(TIMEOUT_S)
    return told


def position_of(thread: threading.Thread) -> tuple[bool, bool]:
    found: list[tuple[int, bool, int, bool]] = []
    asker = threading.Thread(target=lambda: found.extend(current_threads()))
    asker.start()
    asker.join(TIMEOUT_S)
    (told,) = [each for each in found if each[0] == thread.ident]
    assert told[2] == thread.native_id
    return told[1], told[3]


def test_threads_of_horovod_are_idle(tmp_path: Path) -> None:
    """They read from a launcher, or write a checkpoint, and run nothing of the user's."""
    own = str(Path(horovod.__file__).parent)
    assert position_of_a_thread_in(f"{own}/job") == (True, True)
    assert position_of_a_thread_in(f"{own}/mxnet") == (True, True)
    assert position_of_a_thread_in(f"{own}/data") == (False, False)  # it reads the user's data
    assert position_of_a_thread_in(str(tmp_path)) == (False, False)


@pytest.mark.parametrize(
    "packages", ["/usr/lib/python3/site-packages", "/usr/lib/python3/dist-packages", "/a/b.zip"]
)
def test_frameworks_are_known_wherever_they_are_installed(
    packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray", "jax"):
        module = ModuleType(name)
        module.__path__ = [f"{packages}/{name}"]
        monkeypatch.setitem(sys.modules, name, module)
    assert position_of_a_thread_in(f"{packages}/ray/_private") == (True, True)
    assert position_of_a_thread_in(f"{packages}/jax/_src") == (False, True)
    assert position_of_a_thread_in(f"{packages}/rays") == (False, False)


def test_a_thread_of_native_code_alone_may_wake_others() -> None:
    """It has no frame but those of the standard library, as a loader that is written in C++ has."""
    gate = threading.Lock()
    gate.acquire()
    thread = threading.Thread(target=gate.acquire, args=(True, TIMEOUT_S))
    thread.start()
    told = position_of(thread)
    gate.release()
    thread.join(TIMEOUT_S)
    assert told == (True, False)


def test_a_signal_makes_the_process_write_its_stacks() -> None:
    dump = StackDump()
    number, fd, thread = dump.arguments
    assert thread == threading.main_thread().native_id
    signal.pthread_kill(threading.main_thread().ident or 0, number)
    text = os.pread(fd, 100_000, 0).decode()
    dump.close()
    assert f'File "{__file__}"' in text
    assert "in test_a_signal_makes_the_process_write_its_stacks" in text
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_each_dump_has_a_signal_of_its_own() -> None:
    first, second = StackDump(), StackDump()
    number, fd, _ = second.arguments
    assert number != first.arguments[0]
    first.close()
    signal.pthread_kill(threading.main_thread().ident or 0, number)
    assert os.fstat(fd).st_size > 0
    second.close()


def test_without_a_free_signal_there_is_no_dump() -> None:
    real_time = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, real_time)
    dump = StackDump()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert dump.arguments[0] == dump.arguments[2] == 0
    dump.close()


def test_the_report_of_a_stall_holds_what_the_watch_tells() -> None:
    """Rank 1 of a world of threads does not come; the error says where the main thread is."""
    engines = make_world(2, EngineOptions(stall_check_time_s=0.2, stall_shutdown_time_s=0.3))
    watch = PositionWatch(engines[1])
    handle = engines[0].submit(
        _native.BARRIER, "b", (), (), call_site="train.py:7", waits_next=True
    )
    with pytest.raises(StalledError) as caught:
        handle.wait(TIMEOUT_S)
    for engine in engines:
        engine.close()
    watch.join(TIMEOUT_S)
    text = str(caught.value)
    assert "b: submitted by rank 0 at train.py:7" in text
    assert "Missing ranks:\nrank 1: [b]\n  It " in text
    assert "has not submitted any operation yet." in text
    assert f"in {test_the_report_of_a_stall_holds_what_the_watch_tells.__name__}" in text


def test_the_watch_ends_with_its_engine() -> None:
    engines = make_world(1)
    before = set(threading.enumerate())
    watch = PositionWatch(engines[0])
    assert len(set(threading.enumerate()) - before) == 1
    engines[0].close()
    watch.join(TIMEOUT_S)
    assert set(threading.enumerate()) <= before


def test_the_call_site_is_outside_of_the_package() -> None:
    def public() -> str:  # stands for a function of Horovod
        return call_site()

    expected = line_after()
    assert public() == expected


CROSSED_THREADS = """
import torch
import horovod.torch as hvd
from horovod.testing import run_ranks

def crossed():
    hvd.init()
    hvd.allreduce(torch.ones(3), name=f"of_rank_{hvd.rank()}")

run_ranks(2, crossed)
"""


def test_ranks_that_are_threads_and_wait_for_each_other_end() -> None:
    """A thread that waits for another engine of the process is idle to this one.

    In a process of its own: a thread of pytest-xdist reads from another process, so it may go on.
    """
    done = subprocess.run(
        [sys.executable, "-c", CROSSED_THREADS],
        env={**os.environ, "HOROVOD_DEADLOCK_TIMEOUT": "1.5"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 1
    assert re.search(r"StalledError: .*Ranks wait for each other", done.stderr, re.S), done.stderr
