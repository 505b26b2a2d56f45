"""Runs a job from the command line: console and signals are those of this process."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._settings.config import inherited_environment
from horovod._settings.reader import SettingsReader
from horovod.errors import StartError
from horovod.runner.output.console import Console
from horovod.runner.output.kept_reports import keep_report
from horovod.runner.starting.launch import start
from horovod.runner.starting.requests import Caller, FixedRequest
from horovod.runner.supervision.startup import StartWatch
from horovod.runner.system.signals import caught_signals

if TYPE_CHECKING:
    from horovod.runner.starting.requests import JobRequest
    from horovod.runner.supervision.outcome import Outcome


def run(request: JobRequest) -> int:
    """Run a job, and print how it ended; return its exit code."""
    with caught_signals() as interrupts, Console(sys.stdout, sys.stderr) as console:
        caller = Caller(console, interrupts)
        if isinstance(request, FixedRequest):
            hostnames = [slot.hostname for slot in request.slots]
            verbose = request.options.verbose
            watch = StartWatch(hostnames, console.say, time.monotonic(), verbose=verbose)
            caller = replace(caller, store_user=watch.using)
        return finish(start(request, caller), console)


def finish(outcome: Outcome, console: Console) -> int:
    """Print how a job ended; return its exit code."""
    cause = outcome.message if outcome.details_are_above else outcome.report
    for text in (outcome.summary, cause):  # the cause comes last, where it is seen
        if text:
            console.say(text)
    if outcome.exit_code and not outcome.stop_signal and _keeps_reports():
        keep_report([outcome.summary, outcome.report])
    if outcome.exit_code == 128 + signal.SIGPIPE:
        drop_stdout()
    return outcome.exit_code


def _keeps_reports() -> bool:
    try:
        return bool(SettingsReader(inherited_environment()).value("HOROVOD_KEEP_REPORTS"))
    except StartError:  # what cannot be read is no consent
        return False


def drop_stdout() -> None:
    """Keep Python from complaining at its end that nobody reads its stdout any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
