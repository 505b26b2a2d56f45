"""Answers commands of those who watch a job: the stacks of this rank, a trace of some steps."""

from __future__ import annotations

import os
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rank.reports.position import current_stacks
from horovod._rendezvous.observed import Command, answer_key
from horovod.errors import HorovodInternalError, StartError, UsageError

if TYPE_CHECKING:
    from horovod._native import Engine
    from horovod._rank.reports.steps import Steps
    from horovod._rendezvous.store import StoreClient
    from horovod._settings.config import Config

# A program whose steps nobody counts, or that is stuck, is traced for so long.
MOST_TRACE_S = 10.0
MOST_TRACE_BYTES = 256 << 20


class Answers:
    """Executes each command once; for the thread that reports.

    Args:
        engine: of this rank.
        config: says which rank this is.
        steps: counts them.
    """

    def __init__(self, engine: Engine, config: Config, steps: Steps) -> None:
        self._engine = engine
        self._config = config
        self._steps = steps
        self._done = -1
        self._trace: _Trace | None = None

    def follow(self, text: bytes | None, store: StoreClient) -> None:
        """Begin what the launcher asks for, if it is new, and end a trace that is complete."""
        if self._trace is not None and self._trace.is_complete():
            self._end_trace(self._trace, store)
            self._trace = None
        if text is None:
            return
        command = Command.from_json(text)
        if command.number <= self._done:
            return
        self._done = command.number
        if command.kind == "stacks":
            self._answer(store, command.number, current_stacks().encode())
        elif command.kind == "trace" and self._config.rank == 0:
            self._begin_trace(command, store)

    def close(self) -> None:
        """Drop a trace that is not complete."""
        if self._trace is not None:
            with suppress(UsageError):
                self._trace.finish()
            self._trace = None

    def _end_trace(self, trace: _Trace, store: StoreClient) -> None:
        try:
            self._answer(store, trace.number, trace.finish())
        except UsageError as error:
            self._answer(store, trace.number, b"", str(error))

    def _begin_trace(self, command: Command, store: StoreClient) -> None:
        if self._trace is not None or self._config.timeline:
            why = "there is a timeline already: --timeline-filename, or another trace"
            self._answer(store, command.number, b"", why)
            return
        try:
            self._trace = _Trace(self._engine, self._steps, command)
        except (OSError, UsageError, HorovodInternalError) as error:
            self._answer(store, command.number, b"", str(error))

    def _answer(self, store: StoreClient, number: int, data: bytes, problem: str = "") -> None:
        value = b"!" + problem.encode() if problem else b"=" + zlib.compress(data, 6)
        with suppress(StartError):
            store.set(answer_key(number, self._config.rank), value)


class _Trace:
    """A timeline in memory, of some steps of all ranks."""

    def __init__(self, engine: Engine, steps: Steps, command: Command) -> None:
        self.number = command.number
        self._engine = engine
        self._steps = steps
        self._until = steps.number + command.num_steps
        self._deadline = time.monotonic() + MOST_TRACE_S
        self._fd = os.memfd_create("horovod-trace", os.MFD_CLOEXEC)
        try:
            engine.start_trace(f"/proc/self/fd/{self._fd}")
        except BaseException:
            os.close(self._fd)
            raise

    def is_complete(self) -> bool:
        """Return whether all steps are over, or the time is."""
        return self._steps.number >= self._until or time.monotonic() >= self._deadline

    def finish(self) -> bytes:
        """End the timeline and return it.

        Raises:
            UsageError: a timeline of the program has taken its place, or it is too long to be sent.
        """
        try:
            if not self._stop():
                raise UsageError(
                    "the program has started a timeline of its own, which ended this trace"
                )
            size = os.fstat(self._fd).st_size
            if size > MOST_TRACE_BYTES:
                raise UsageError(
                    f"the trace has {size >> 20} MiB, more than the {MOST_TRACE_BYTES >> 20} that "
                    "are sent: ask for fewer steps, or write a file with --timeline-filename"
                )
            return _read_all(self._fd, size)
        finally:
            os.close(self._fd)

    def _stop(self) -> bool:
        try:
            return self._engine.stop_trace()
        except HorovodInternalError:
            return True  # the engine has failed: what is there may help


def _read_all(descriptor: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, sum(map(len, parts)))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
