"""How the operations of one group get their names, deadlines and call sites."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from horovod._rank.submit_options import SubmitOptions
from horovod.torch.distributed.call_sites import user_call_site
from horovod.torch.distributed.futures import FutureThreads, MessageFutures
from horovod.torch.distributed.work import EngineWork, Submitted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod.torch.distributed.memory import Finish


_MOST_COUNTS = 1024


class CallOptions(Protocol):
    """The fields that the options of all operations of PyTorch share."""

    @property
    def timeout(self) -> timedelta:
        """How long the operation may take; negative for the timeout of the group."""


class Submitter:
    """Submits the operations of one group; every method may be called from any thread.

    An operation is named after the group and its number in the group, whatever it does, so ranks
    that call different operations get a MismatchError that quotes the call of each rank.

    Args:
        group: the ranks.
        label: the group in names and messages.
        timeout: of operations that have none of their own.
    """

    def __init__(self, group: Group, label: str, timeout: timedelta) -> None:
        self.group = group
        self.label = label
        self.timeout = timeout
        self._numbers = itertools.count(1)
        self._counts: list[EngineWork] = []
        self._counts_lock = threading.Lock()
        self._futures = FutureThreads(f"horovod futures of {label}")
        self._message_futures = MessageFutures(f"horovod messages of {label}")
        self._prefix = f"torch.{label}"

    def start(
        self,
        what: str,
        options: CallOptions,
        submit: Callable[[SubmitOptions], Handle],
        outputs: Sequence[torch.Tensor],
        *,
        keep: object,
        finish: Finish | None = None,
    ) -> EngineWork:
        """Submit an operation of all ranks of the group.

        Args:
            what: the operation, for messages.
            options: of the call.
            submit: starts the operation.
            outputs: the tensors that it writes.
            keep: refers to the memory of the operation.
            finish: moves its results into them; None if the engine writes there.

        Raises:
            UsageError: the arguments do not fit.
            HorovodInternalError: the engine can no longer work.
        """
        name = str(next(self._numbers))
        site = user_call_site()
        # Without asyncOp, PyTorch waits for what it has called, so no thread needs to be woken.
        waits_next = not getattr(options, "asyncOp", True)
        call = SubmitOptions(name=name, prefix=self._prefix, waits_next=waits_next)
        call["call_site"] = site
        call["keep"] = keep
        handle = submit(call)
        submitted = self._submitted(f"{what} {name}", site, options.timeout, handle)
        submitted.outputs, submitted.finish = list(outputs), finish
        work = EngineWork(submitted, self._futures)
        if len(submitted.outputs) == 1 and submitted.outputs[0].numel() == 1:
            self._keep(work)
        return work

    def _keep(self, work: EngineWork) -> None:
        """Keep the work of one number until somebody has waited for it.

        DistributedDataParallel in a join context hands the sum of ones, which counts the ranks, to
        C++ code, and drops the Python object. Without that, C++ waits forever.
        """
        with self._counts_lock:
            self._counts.append(work)
            if len(self._counts) > _MOST_COUNTS:
                self._counts = [each for each in self._counts if not each.has_settled]
                # For the oldest of so many, nobody ever waits.
                del self._counts[:-_MOST_COUNTS]

    def follow_message(
        self,
        what: str,
        site: str,
        timeout: timedelta,
        handle: Handle,
        tensors: Sequence[torch.Tensor],
        finish: Finish | None = None,
    ) -> EngineWork:
        """Return the work of a message between two ranks that the engine has accepted.

        Args:
            what: the operation and what tells it apart, for messages.
            site: ``file:line`` of the caller.
            timeout: of the operation; 0 for that of the group.
            handle: the operation.
            tensors: those of the caller.
            finish: moves what has arrived into them; None if the engine writes there.
        """
        submitted = self._submitted(what, site, timeout, handle)
        submitted.outputs, submitted.finish = list(tensors), finish
        return EngineWork(submitted, self._message_futures)

    def _submitted(self, what: str, site: str, timeout: timedelta, handle: Handle) -> Submitted:
        limit = timeout if timeout > timedelta(0) else self.timeout
        description = f"{what} of {self.label}" + (f" at {site}" if site else "")
        return Submitted(
            handle,
            f"{description} (timeout {limit.total_seconds():g} s)",
            time.monotonic() + limit.total_seconds(),
            self.group.engine.close,
        )

    def close(self) -> None:
        """End the threads of the futures after what is pending."""
        self._counts.clear()
        self._futures.close()
        self._message_futures.close()
