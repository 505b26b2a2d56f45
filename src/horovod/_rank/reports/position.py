"""Where this rank is in its program, for ranks that miss it.

The engine runs without the interpreter. When another rank asks where this one is, a thread of this
module wakes, takes the interpreter's lock for a moment and writes down the stacks of all threads.
If native code keeps the lock, the engine sends the process a signal whose handler, that of
:mod:`faulthandler`, writes them to a memfd without any lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import horovod

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from horovod._native import Engine

_INNER_FRAMES = 8
_OUTER_FRAMES = 8
_MOST_THREADS = 8
_WAIT_S = 3600.0
# Whose threads call nothing of the user's: Horovod's own, and those of what runs ranks.
_OWN = os.path.join(os.path.dirname(horovod.__file__), "")
_STARTERS = ("ray", "pyspark", "py4j")
_STDLIB = os.path.dirname(threading.__file__)
# Where a thread is that waits for work, such as one of a pool, or of a loader.
_IDLE_FILES = (
    __file__,
    os.path.join(_OWN, "testing", "threads.py"),  # for ranks that are threads
    *(
        os.path.join(_STDLIB, name)
        for name in (
            "threading.py",
            "queue.py",
            "selectors.py",
            os.path.join("concurrent", ""),
            os.path.join("multiprocessing", ""),
        )
    ),
)

_LOADERS = os.path.join(_OWN, "data", "")  # whose threads read what the user's data set gives
# Where a thread is that waits for a program of a framework. While it waits, it may look for signals
# from time to time.
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "jax", "jaxlib", "mxnet")
_OWN_FRAMEWORKS = tuple(
    os.path.join(_OWN, name, "") for name in ("tensorflow", "keras", "jax", "mxnet")
)


class StackDump:
    """A signal that makes this process write its stacks into a memfd; for one engine.

    Attributes:
        arguments: signal number, descriptor and thread id, as ``EngineOptions(stack_dump=…)``
            takes them; zeros if every signal is taken.
    """

    def __init__(self) -> None:
        self._signal = _free_signal()
        self._fd = os.memfd_create("horovod-stacks", os.MFD_CLOEXEC)
        if self._signal:
            faulthandler.register(self._signal, file=self._fd, all_threads=True)

    @property
    def arguments(self) -> tuple[int, int, int]:
        thread_id = threading.main_thread().native_id
        return self._signal, self._fd, thread_id if self._signal and thread_id else 0

    def close(self) -> None:
        """Gives the signal and the descriptor back; the engine must not use them any more."""
        if self._signal:
            faulthandler.unregister(self._signal)
        with contextlib.suppress(OSError):
            os.close(self._fd)


class PositionWatch:
    """A thread that answers for the engine where this process is. Ends when the engine closes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = threading.Thread(target=self._run, name="hvd-position", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits for the end of the thread, after the engine has been closed."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            if self._engine.wait_for_position_request(_WAIT_S):
                self._engine.answer_position(current_stacks(), current_threads())
            elif self._engine.closed():
                return


def current_stacks() -> str:
    """Returns the stacks of the threads of this process but the caller's, the main thread first.

    Each has a heading with its name and its frames, the innermost first, as
    ``file:line in function``. Of many frames only the innermost and the outermost are told: where
    the thread is, and the way that the user's script took.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    order = sorted(frames, key=lambda ident: (ident != main, ident))
    lines: list[str] = []
    for ident in order[:_MOST_THREADS]:
        lines.append(f"{names.get(ident, 'a thread without a name')}:")
        lines += _stack_of(frames[ident])
    if len(order) > _MOST_THREADS:
        lines.append(f"and {len(order) - _MOST_THREADS} more threads")
    return "\n".join(lines)


def current_threads() -> list[tuple[int, bool, int, bool]]:
    """Describe what each thread of this process does, except the caller's.

    An idle thread waits for another one of this process, or for a worker process, in one of the
    modules of the standard library for that; or it is a thread of Horovod's own, or of the system
    that started this process, and runs nothing of the user's. One that sleeps, reads or computes is
    not idle. The native id is 0 where the interpreter does not know it.

    Returns:
        For each, its ident, whether it is idle, its native id, and whether it is in a call of a
        framework that runs Horovod's kernels, or is an idle thread that Horovod or the system that
        started this process runs. A stack of the standard library alone may hide native code.
    """
    native_ids = {thread.ident: thread.native_id or 0 for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frameworks = (*_OWN_FRAMEWORKS, *_folders_of(_FRAMEWORKS))
    starters = (_OWN, *_folders_of(_STARTERS))
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    threads: list[tuple[int, bool, int, bool]] = []
    for ident, frame in frames.items():
        files = _files_of(frame)
        housekeeping = ident != main and all(_is_of_no_user(file, starters) for file in files)
        started = housekeeping and any(file.startswith(starters) for file in files)
        in_framework = started or files[0].startswith(frameworks)
        idle = housekeeping or _waits_for_work(frame)
        threads.append((ident, idle, native_ids.get(ident, 0), in_framework))
    return threads


def _folders_of(packages: Iterable[str]) -> list[str]:
    """Return the folders of the packages that are loaded; that of one in an archive is in it."""
    loaded = (sys.modules.get(name) for name in packages)
    return [os.path.join(path, "") for module in loaded for path in getattr(module, "__path__", ())]


def _waits_for_work(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_IDLE_FILES)


def _files_of(frame: FrameType | None) -> list[str]:
    files: list[str] = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def _is_of_no_user(file: str, starters: tuple[str, ...]) -> bool:
    if file.startswith(starters):
        return not file.startswith(_LOADERS)
    third_party = "site-packages" in file or "dist-packages" in file
    return not third_party and file.startswith((_STDLIB, "<frozen "))


def _stack_of(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None:
        code = frame.f_code
        lines.append(f"  {code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    num_hidden = len(lines) - _INNER_FRAMES - _OUTER_FRAMES
    if num_hidden <= 1:
        return lines
    return [*lines[:_INNER_FRAMES], f"  … {num_hidden} frames", *lines[-_OUTER_FRAMES:]]


def _free_signal() -> int:
    """The highest real-time signal that nobody uses; 0 if there is none."""
    taken = _signals_in_use()
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    return 0


def _signals_in_use() -> int:
    """Bit n - 1 is set if signal n has a handler or is ignored or blocked, as proc(5) tells it.

    The signal module only knows of handlers that were set through it, but native libraries have
    their own.
    """
    masks = 0
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in ("SigBlk", "SigIgn", "SigCgt"):
                masks |= int(value, 16)
    return masks
