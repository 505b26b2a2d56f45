"""The one place that makes a supervisor."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from horovod._rank.reports.end import EndReport, end_report
from horovod.errors import StartError
from horovod.runner.supervision.early_exit import leave_note
from horovod.runner.supervision.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.output.output import Output
    from horovod.runner.starting.crew import Crew
    from horovod.runner.starting.requests import Caller
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome


class Store(Protocol):
    """The store of a job, in this process or in that of node 0."""

    def try_get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    def add(self, key: str, value: bytes) -> bytes | None:
        """Set a key that has no value; return the value that it has then."""
        ...


def supervise(
    crew: Crew, output: Output, store: Store, caller: Caller, log: Callable[[str], None]
) -> Outcome:
    """Run a job to its end.

    Args:
        crew: whom to start and follow.
        output: takes what the ranks print.
        store: where ranks leave reports, and find that another one has ended.
        caller: what ends the job from outside, and who hears of its end.
        log: takes one line for ``--verbose``.
    """

    def on_exit(ended: RankExit) -> None:
        with suppress(StartError):  # a store that is gone ends the job anyway
            leave_note(ended, store.try_get, store.add)
        caller.on_exit(ended)

    def report_of(worker: int) -> EndReport | None:
        try:
            return end_report(worker, store.try_get)
        except StartError:
            return None

    make: Callable[..., Supervisor]
    if crew.fleet is None:
        make = partial(
            Supervisor, crew.jobs, crossing=crew.crossing, grace_s=crew.grace_s, on_exit=on_exit
        )
    else:
        # Not for every job: it takes its time to load.
        from horovod.runner.supervision.elastic_supervisor import ElasticSupervisor

        make = partial(ElasticSupervisor, crew.fleet)
    return make(
        start_agent=crew.start_agent,
        output=output,
        start_timeout_s=crew.start_timeout_s,
        log=log,
        announce=caller.console.say,
        interrupts=caller.interrupts,
        wakeups=caller.wakeups,
        alarm=caller.alarm,
        explain=crew.explain,
        report_of=report_of,
        on_outcome=caller.on_outcome,
        policy=crew.policy,
    ).run()
