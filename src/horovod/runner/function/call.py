"""A function on its way to the ranks, and what they return on its way back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import cloudpickle

from horovod.errors import RankFailedError, UsageError
from horovod.runner.function.notebook import name_cells
from horovod.runner.function.task import FUNCTION_KEY, error_key, pack_function, result_key
from horovod.runner.supervision.failure import RankExit, first_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.supervision.outcome import Outcome


def packed(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    path: list[str],
    caller: str = "horovod.run",
) -> bytes:
    """The call as it travels to the ranks.

    Args:
        func, args, kwargs: the call.
        path: see :func:`pack_function`.
        caller: whose arguments these are, for messages.

    Raises:
        UsageError: something in it cannot be pickled.
    """
    try:
        return pack_function(func, args, kwargs, path)
    except Exception as error:  # whatever the user's __reduce__ may raise
        raise UsageError(
            f"{caller}: the function or its arguments cannot be sent to the ranks: "
            f"{type(error).__name__}: {error}; create such objects inside the function"
        ) from error


class RemoteFunction:
    """A function on its way to the ranks, and their results on the way back.

    Args:
        payload: the packed function.
        hostnames: of each rank.
        fewest: how many results there must be, where ranks come and go; None for all.
        tells_others: whether an error names what else ranks raised, since they do not print it.
    """

    def __init__(
        self,
        payload: bytes,
        hostnames: Sequence[str],
        fewest: int | None = None,
        *,
        tells_others: bool = False,
    ) -> None:
        self._tells_others = tells_others
        self._fewest = len(hostnames) if fewest is None else fewest
        self._payload = payload
        self._hostnames = hostnames
        self._size = len(hostnames)
        self._results: dict[int, bytes] = {}
        self._errors: dict[int, str] = {}
        self._told: set[str] = set()
        self._store: StoreServer | None = None

    @contextlib.contextmanager
    def using(self, store: StoreServer) -> Iterator[None]:
        """Puts the function into the store; after the job takes out what the ranks left there."""
        store.set(FUNCTION_KEY, self._payload)
        self._store = store
        yield
        for rank in range(self._size):
            if (value := store.try_get(result_key(rank))) is not None:
                self._results[rank] = bytes(value)
        self._read_errors()
        self._store = None

    def tell_errors(self, say: Callable[[str], None]) -> None:
        """Tell, once each, what ranks raised although the job goes on, or has ended well.

        Args:
            say: takes the text for the user.
        """
        self._read_errors()
        for rank, text in sorted(self._errors.items()):
            if text not in self._told:
                self._told.add(text)
                say(f"rank {rank} raised an exception:\n{text.rstrip()}")

    def _read_errors(self) -> None:
        if self._store is None:
            return
        for rank in range(self._size):
            if (text := self._store.try_get(error_key(rank))) is not None:
                self._errors[rank] = name_cells(bytes(text).decode(errors="replace"))

    def results(self, outcome: Outcome) -> list[Any]:
        """The results in the order of ranks.

        Raises:
            RankFailedError: the job failed, or a rank ended without a result.
        """
        __tracebackhide__ = True  # in a notebook, which shows the traceback of the rank
        if outcome.exit_code != 0:
            raise self._error(outcome)
        missing = [rank for rank in range(self._fewest) if rank not in self._results]
        if missing:
            raise RankFailedError(
                f"rank {missing[0]} ended with code 0, but before its function returned",
                rank=missing[0],
                exit_code=0,
            )
        return [self._result(rank) for rank in sorted(self._results)]

    def _result(self, rank: int) -> Any:
        try:
            return cloudpickle.loads(self._results[rank])
        except Exception as error:  # whatever the class of the result may raise
            raise RankFailedError(
                f"the result of rank {rank} cannot be read here: {type(error).__name__}: {error}",
                rank=rank,
                exit_code=0,
            ) from error

    def _error(self, outcome: Outcome) -> RankFailedError:
        failure = outcome.failure or self._first_failure(outcome.exit_code)
        if failure is None:
            return RankFailedError(outcome.report, exit_code=outcome.exit_code)
        text = self._errors.get(failure.rank, "")
        message = outcome.report
        if text:
            message = f"rank {failure.rank} on {failure.hostname} raised an exception:\n{text}"
            message += self._others(failure.rank) if self._tells_others else ""
        return RankFailedError(
            message,
            rank=failure.rank,
            host=failure.hostname,
            exit_code=failure.exit_code,
            signal=failure.signal_name,
            traceback=text,
        )

    def _others(self, rank: int) -> str:
        """Errors that are neither that of a rank nor follow from it, a line for each."""
        told = {_last_line(text) for text in (self._errors[rank], *self._told)}
        lines = []
        for other, text in sorted(self._errors.items()):
            line = _last_line(text)
            exit_of = RankExit(other, "", 1, 0.0, tuple(text.splitlines()))
            if line not in told and not exit_of.is_follow_up:
                told.add(line)
                lines.append(f"rank {other} also raised: {line}\n")
        return "".join(lines)

    def _first_failure(self, exit_code: int) -> RankExit | None:
        """By what the ranks left in the store, where the launcher knows nothing of single ranks."""
        return first_failure(
            [
                RankExit(rank, self._hostnames[rank], exit_code, 0.0, tuple(text.splitlines()))
                for rank, text in self._errors.items()
            ]
        )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
