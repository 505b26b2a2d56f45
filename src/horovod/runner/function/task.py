"""Runs on each rank of ``horovod.run``: fetch the function, call it, store the result.

Keys of the store: ``function`` (from the caller), ``result/<rank>`` and ``error/<rank>`` (text of a
traceback). The store takes only peers that know the job's secret, so what is unpickled comes from
the process of the same user that started this one.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import pickle
import sys
import traceback
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from horovod._job.worker import Dismissed
from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._settings.config import Config
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")

FUNCTION_KEY = "function"
QUIET = "--quiet"
"""The argument of a rank whose caller shows its error."""


def result_key(rank: int) -> str:
    """Return the store key of a rank's pickled result."""
    return f"result/{rank}"


def error_key(rank: int) -> str:
    """Return the store key of a rank's traceback, which is text."""
    return f"error/{rank}"


def pack_function(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: list[str]
) -> bytes:
    """Pickles a call together with the places where its modules may be found.

    What was typed into a notebook or an interpreter is in no file, so its lines travel with the
    call: tracebacks of the ranks show them.

    Args:
        func, args, kwargs: the call.
        path: entries for ``sys.path``; used after the entries of the rank's own.
    """
    call = io.BytesIO()
    pickler = _CallPickler(call)
    pickler.dump((func, args, kwargs))
    return pickle.dumps((path, _typed_lines(pickler.filenames), call.getvalue()))


class _CallPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles a call as ``cloudpickle.dumps`` does.

    Attributes:
        filenames: of the code that it has pickled by value.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.filenames: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Note the file of code; pickle nothing in another way."""
        if isinstance(obj, CodeType):
            self.filenames.add(obj.co_filename)
        return super().reducer_override(obj)


def _typed_lines(filenames: set[str]) -> dict[str, list[str]]:
    """Return the lines of those among some files that do not exist, by their names."""
    found = {}
    for name in filenames:
        entry = linecache.cache.get(name, ())
        # Of a file, the second is the time of its last change.
        if len(entry) == 4 and entry[1] is None:
            found[name] = list(entry[2])
    return found


def _call(payload: bytes) -> Any:
    path, typed, call = pickle.loads(payload)
    sys.path += [entry for entry in path if entry not in sys.path]
    for name, lines in typed.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    func, args, kwargs = cloudpickle.loads(call)
    return func(*args, **kwargs)


def main() -> None:
    """Runs the function of this rank.

    An exception of the function is stored and then goes its way: Python prints it, and Horovod
    tells it to the other ranks. ``sys.exit(0)`` counts as a return of None. A worker that is no
    longer needed returns nothing.
    """
    quiet = _Quiet() if QUIET in sys.argv[1:] else None
    config = Config.from_env()
    payload = _exchange(config, lambda store: store.get(FUNCTION_KEY, config.start_timeout_s))
    try:
        try:
            result = _call(payload)
        except Dismissed:
            return  # what the others return counts
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
            result = None
        value = cloudpickle.dumps(result)
    except BaseException as error:
        text = _traceback_of(error).encode(errors="replace")
        with contextlib.suppress(StartError):  # the first error is the one that matters
            rank = Config.from_env().rank  # the job may have given it another one
            _exchange(config, lambda store: store.set(error_key(rank), text))
            if quiet is not None:
                quiet.knows = True
        raise
    # The job may have given this process another rank meanwhile.
    key = result_key(Config.from_env().rank)
    _exchange(config, lambda store: store.set(key, value))


def _traceback_of(error: BaseException) -> str:
    """Return the text of a traceback, without the frames of this module around the function."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_own(frames):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_own(frames: TracebackType) -> bool:
    return frames.tb_frame.f_code.co_filename == __file__


class _Quiet:
    """Prints what this process dies of only if the caller does not know it.

    Attributes:
        knows: whether it does.
    """

    def __init__(self) -> None:
        self.knows = False
        self._print = sys.excepthook
        sys.excepthook = self._hook

    def _hook(
        self, kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        if not self.knows:
            self._print(kind, value, traceback)


def _exchange(config: Config, exchange: Callable[[StoreClient], T]) -> T:
    """Talks to the store over a connection of its own: the function may take hours, or fork."""
    secret = secret_of(config)
    address, port = config.rendezvous_addr, config.rendezvous_port
    with StoreClient(address, port, secret, config.start_timeout_s) as store:
        return exchange(store)


if __name__ == "__main__":
    main()
