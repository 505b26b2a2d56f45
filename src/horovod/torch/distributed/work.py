"""Operations in flight, as ``torch.distributed`` sees them."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from horovod.errors import HorovodInternalError, StalledError, UsageError
from horovod.torch.compiling import methods_outside_of_graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._native import Handle


class Futures(Protocol):
    """Completes futures."""

    def add(self, work: EngineWork, trigger: Future[None]) -> None:
        """Complete a future when its operation has ended, whether it failed or not."""


_NO_TIMEOUT = timedelta(0)  # the default of torch.distributed.Work.wait
_REPORT_TIME_S = 10.0  # for the engine to find out which ranks are missing, and to end


@dataclass(slots=True)
class Submitted:
    """An operation that the engine has accepted.

    Attributes:
        handle: the operation.
        description: the operation with its number, group and call site, for messages.
        deadline_s: of ``time.monotonic()``; the operation fails if it has not ended by then.
        close: ends the engine of this rank for a reason.
        outputs: the tensors that it writes, which are the value of its future.
        finish: moves results of the ended operation into ``outputs``; None if they are there.
    """

    handle: Handle
    description: str
    deadline_s: float
    close: Callable[[str], None]
    outputs: list[torch.Tensor] = field(default_factory=list)
    finish: Callable[[Handle], None] | None = None


@methods_outside_of_graphs
class EngineWork(Work):
    """An operation of the engine; all methods may be called from any thread.

    Args:
        submitted: the operation.
        futures: completes its future.
    """

    def __init__(self, submitted: Submitted, futures: Futures) -> None:
        super().__init__()
        self._submitted = submitted
        self._futures = futures
        self._lock = threading.Lock()
        self._has_ended = False
        self._error: Exception | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the operation.

        Args:
            timeout: the operation goes on if this time passes; 0 waits until its own deadline.

        Returns:
            True.

        Raises:
            HorovodInternalError: the operation failed.
            UsageError: what arrived does not fit into the tensors of this rank.
            StalledError: a time passed; that of the operation itself ends the engine.
        """
        if not self._has_ended:
            self._await(timeout.total_seconds())
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait for the operation, as :meth:`wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the operation, as :meth:`wait`: the CPU has no streams."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the operation has ended, also with an error; never wait."""
        if not self._has_ended and self._submitted.handle.done():
            self._settle()
        return self._has_ended

    def is_success(self) -> bool:
        """Return whether the operation has ended without an error; never wait."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the ended operation; None if there is none or it has not ended."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Wait and return the tensors that the operation has written."""
        self.wait()
        return self._submitted.outputs

    def source_rank(self) -> int:
        """Return the group rank that the received tensor came from.

        Raises:
            UsageError: the operation is not a receive, or it has not ended.
        """
        if not self.is_success():
            raise UsageError(f"{self._submitted.description} has not ended well: no source rank")
        return self._submitted.handle.source()

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Future[Any]:
        """Return the future of the operation, which completes without a caller that waits.

        Its value is the list of the tensors that the operation has written.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            trigger: Future[None] = Future()
            # A callback that raises is the only way in Python to give a future an error that
            # PyTorch's C++ code sees; set_exception() is known to Python alone.
            self._future = trigger.then(self._value_of)
            has_ended = self._has_ended
        if has_ended:
            trigger.set_result(None)
        else:
            self._futures.add(self, trigger)
        return self._future

    @property
    def has_settled(self) -> bool:
        """Whether somebody has noticed that the operation has ended."""
        return self._has_ended

    @property
    def handle(self) -> Handle:
        """The operation of the engine."""
        return self._submitted.handle

    def end(self) -> None:
        """Wait until the operation has ended, whether it fails or not."""
        if not self._has_ended:
            self._await(0.0)

    def _value_of(self, trigger: Future[None]) -> list[torch.Tensor]:
        del trigger
        if self._error is not None:
            raise self._error
        return self._submitted.outputs

    def _await(self, limit_s: float) -> None:
        """Wait for the end of the operation, or raise StalledError when a time has passed."""
        left_s = max(0.0, self._submitted.deadline_s - time.monotonic())
        is_own = limit_s <= 0 or left_s <= limit_s
        try:
            has_ended = self._submitted.handle.wait(left_s if is_own else limit_s)
        except HorovodInternalError:
            has_ended = True
        if not has_ended:
            if not is_own:
                raise self._still_running(limit_s)
            self._give_up()
        self._settle()

    def _settle(self) -> None:
        """Move the results of the ended operation, once."""
        with self._lock:
            if self._has_ended:
                return
            submitted = self._submitted
            try:
                submitted.handle.wait()
                if submitted.finish is not None:
                    with torch.no_grad():
                        submitted.finish(submitted.handle)
            except Exception as error:
                self._error = error
            submitted.finish = None
            self._has_ended = True

    def _give_up(self) -> None:
        """End the engine on all ranks, with an error that names the ranks that are missing.

        The operation has ended when this returns; it succeeded if the ranks came just now.
        """
        submitted = self._submitted
        text = f"{submitted.description} did not end within its timeout"
        submitted.handle.give_up(
            f"{text}. The engine ends on all ranks; give init_process_group(timeout=…) more time "
            "if the ranks are only slow."
        )
        with contextlib.suppress(HorovodInternalError):
            if not submitted.handle.wait(_REPORT_TIME_S):
                submitted.close(text)
                submitted.handle.wait()

    def _still_running(self, limit_s: float) -> StalledError:
        return StalledError(
            f"{self._submitted.description} has not ended after the {limit_s:g} s of "
            "wait(timeout=…); it goes on"
        )


@methods_outside_of_graphs
class JoinedWork(Work):
    """Several operations that are waited for together.

    Args:
        works: the operations.
    """

    def __init__(self, works: Sequence[EngineWork]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for all operations; raise the first error after all have ended.

        Args:
            timeout: for each of them; see :meth:`EngineWork.wait`.
        """
        first: Exception | None = None
        for work in self._works:
            try:
                work.wait(timeout)
            except (HorovodInternalError, UsageError) as error:
                first = first or error
        if first is not None:
            raise first
        return True

    def synchronize(self) -> None:
        """Wait for all operations, as :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all operations have ended; never wait."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all operations have ended without an error; never wait."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """Return the first error of the operations that have ended."""
        return next((error for work in self._works if (error := work.exception())), None)

    def result(self) -> list[torch.Tensor]:
        """Wait and return the tensors that the operations have written."""
        self.wait()
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Future[Any]:
        """Return a future whose value is the list of all tensors that were written."""
        futures = [work.get_future() for work in self._works]
        joined: Future[list[Any]] = torch.futures.collect_all(futures)
        return joined.then(lambda ended: [t for one in ended.value() for t in one.value()])
