"""The process beside rank 0 that shows a job of which another launcher started the ranks.

Reads one line of JSON on stdin, and answers with one on stdout. It then serves until more comes on
stdin, or stdin ends, or the process of rank 0 does.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from horovod._rendezvous.store import StoreClient
from horovod._settings.config import inherited_environment
from horovod.errors import StartError, UsageError
from horovod.runner.observation.watched import FixedJob, FixedRanks
from horovod.runner.starting.observed_job import check_watching
from horovod.runner.starting.requests import Watching
from horovod.runner.starting.served import served, with_variables

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from horovod.runner.observation.stream import JobStream

_OUTPUT = "The output of the ranks goes to the launcher that started them, not to this page."


def main() -> int:
    """Serve the job that rank 0 describes; return the exit code."""
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    with ExitStack() as stack:
        watched = [sys.stdin.fileno()]
        try:
            watched.append(os.pidfd_open(told["pid"]))
        except ProcessLookupError:  # rank 0 has gone
            return 1
        except (AttributeError, OSError):
            pass  # a kernel without pidfd_open: the end of stdin has to do
        else:
            stack.callback(os.close, watched[-1])
        try:
            stream = stack.enter_context(_serving(told, stack))
        except (StartError, UsageError) as error:
            _answer(str(error))
            return 1
        _answer("")
        with selectors.DefaultSelector() as selector:
            for descriptor in watched:
                selector.register(descriptor, selectors.EVENT_READ)
            selector.select()
        stream.end("rank 0 has left the job")
    return 0


def _serving(told: dict[str, Any], stack: ExitStack) -> AbstractContextManager[JobStream]:
    watching = with_variables(Watching(), inherited_environment())
    check_watching(watching)
    where = told["address"], told["port"], bytes.fromhex(told["secret"])
    store = stack.enter_context(StoreClient(*where))
    job = FixedJob(store, FixedRanks(tuple(told["hosts"])))
    return served(job, told["command"], watching, _say, pid=told["pid"], elsewhere=_OUTPUT)


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal is gone
        print(f"horovod: {line}", file=sys.stderr, flush=True)


def _answer(problem: str) -> None:
    print(json.dumps({"problem": problem}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
